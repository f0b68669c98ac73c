"""Whole training steps with random weights: generation, update, sleep, wake-up, weight transfer, and memory."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu_steps.actors import algorithm, taken_gb
from benchmarks.gpu_steps.step import Job, Outcome

STEPS = 3
# Figure → the tag that has it; and figure → the stage of a step after which memory is read.
TAGS = {
    "generate_s": "time/collect_rollouts",
    "update_s": "time/update_policy",
    "sleep_s": "time/sleep_engines",
    "wake_and_push_s": "time/sync_weights",
    "grad_norm": "policy/grad_norm",
    "logp_mismatch_max": "policy/logp_mismatch_max",
    "logp_mismatch_mean": "policy/logp_mismatch_mean",
    "mfu": "throughput/mfu",
}
STAGES = {
    "generating_gb": "collect_rollouts",
    "asleep_gb": "sleep_engines",
    "updated_gb": "update_policy",
    "awake_gb": "sync_weights",
}


def training(job: Job) -> Outcome:
    """Take steps after one that starts everything up. Rewards are random: a random model is never correct."""
    sequences = 8 if job.small else job.options["sequences"]
    tokens, queries = (24, 2) if job.small else (512, 32)
    layout = job.options["layout"]
    with algorithm(
        job,
        actors=layout != "one process",
        gpus=(1, 1) if layout == "nccl" else (0.51, 0.49),
        training={"group_size": 8, "queries_per_step": queries},
        engine="vllm",
        sleep_while_training=True,
        max_response_tokens=tokens,
        max_num_seqs=sequences,
        vllm={"max_model_len": tokens + 256},
        **({} if layout == "one process" else {"weight_transfer": layout}),
    ) as built:
        built.train()
        steps = [_step(built, job, 8 * queries) for _ in range(STEPS)]
    medians = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
    summary = (
        f"{sequences} sequences: generate {medians['generate_s']:.3g} s ({medians['generated_tokens_per_s']:,.0f} "
        f"tokens/s), update {medians['update_s']:.3g} s, sleep {medians['sleep_s']:.2g} s, push and wake "
        f"{medians['wake_and_push_s']:.2g} s, gradient norm {medians['grad_norm']:.3g}"
    )
    if "mfu" in medians:
        summary += f", MFU {medians['mfu']:.0%}"
    if job.on_gpu:
        summary += f", GPU {medians['generating_gb']:.0f} GB generating, {medians['asleep_gb']:.0f} asleep"
    void = why_void(steps)
    return Outcome(summary, {"layout": layout, "steps": steps}, [void] if void else [])


def why_void(steps: Sequence[Mapping[str, float]]) -> str:
    """Return why the steps measure no training; empty if they do."""
    idle = [number for number, step in enumerate(steps, 1) if not 0 < step["grad_norm"] < math.inf]
    if not idle:
        return ""
    norms = ", ".join(f"{steps[number - 1]['grad_norm']:g}" for number in idle)
    return f"the measurement is void: gradient norm {norms} in step {', '.join(map(str, idle))}, so nothing was learned"


def _step(built: Any, job: Job, responses: int) -> dict[str, float]:
    """Take one training step, and read the GPU's memory between its stages."""
    taken: dict[str, float] = {}
    inner = built.run_stage

    def run_stage(stage: Any, *arguments: Any) -> Any:
        result = inner(stage, *arguments)
        taken[stage.__name__] = taken_gb(job)
        return result

    built.run_stage = run_stage
    try:
        built.train()
    finally:
        del built.run_stage
    record = built.batch.record
    found = {name: record[tag] for name, tag in TAGS.items() if tag in record}
    found["generated_tokens_per_s"] = record["response/mean_tokens"] * responses / found["generate_s"]
    return found | ({name: taken[stage] for name, stage in STAGES.items() if stage in taken} if job.on_gpu else {})
