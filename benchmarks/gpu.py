"""Training steps on a GPU with random weights: generation, update, sleep, wake-up, weight transfer, and memory.

    python -m benchmarks.gpu                            # one GPU of 80 GB; ends with 2 where there is none
    python -m benchmarks.gpu --sequences 128 256 --json FILE
    python -m benchmarks.gpu --cpu                      # a tiny model: only shows that the benchmark works

The model has the shape of DeepSeek-R1-Distill-Qwen-1.5B. Layouts: `one process` has engine and learner in the driver;
`ipc` and `object_store` have one of each in actors on one GPU; `nccl`, with two GPUs, has them on one each. Each is a
training run through the library's own algorithm: after a step that starts everything up, every further step is
measured. A layout has a process of its own. Memory is what is taken of the first GPU, all processes together; it is
read between the stages of a step. Rewards are random (seeded): a random model is never correct, and without advantages
nothing is updated. A step whose gradient is 0 makes the measurement void: the benchmark says so and ends with 1.
"""

import argparse
import importlib.util
import json
import logging
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.random_models import save_random_model
from benchmarks.random_rewards import RANDOM_REWARDS_ID

_SHARED: Mapping[str, Any] = MappingProxyType(
    {
        "runners": {"num_env_runners": 1, "num_gpus_per_env_runner": 0.51, "sleep_while_training": True},
        "learners": {"num_learners": 1, "num_gpus_per_learner": 0.49},
    }
)
LAYOUTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "one process": {
            "runners": {"sleep_while_training": True},
            "learners": {"num_gpus_per_learner": 1},
        },
        "ipc": {**_SHARED, "way": "ipc"},
        "object_store": {**_SHARED, "way": "object_store"},
        "nccl": {
            "runners": {"num_env_runners": 1, "num_gpus_per_env_runner": 1},
            "learners": {"num_learners": 1, "num_gpus_per_learner": 1},
            "way": "nccl",
            "gpus": 2,
        },
    }
)
CPU_LAYOUTS = ("one process", "object_store")


@dataclass(frozen=True)
class Setting:
    """One measurement.

    Args:
        layout: a key of `LAYOUTS`.
        model: folder.
        steps: to measure.
        sequences: that the engine decodes at once.
        queries: of a step, each with `group_size` responses.
        group_size: responses to a query.
        response_tokens: at which a response is truncated.
        on_gpu: whether there are GPUs; a CPU gets float32 and no shares of them.
        engine: None: vLLM; without it, on a CPU, transformers.
    """

    layout: str
    model: str
    steps: int = 3
    sequences: int = 256
    queries: int = 32
    group_size: int = 8
    response_tokens: int = 512
    on_gpu: bool = True
    engine: str | None = None


def configuration(setting: Setting) -> Any:
    """Return the algorithm's configuration."""
    from algorithms.grpo.config import GRPOConfig

    layout = LAYOUTS[setting.layout]
    runners, learners = dict(layout["runners"]), dict(layout["learners"])
    dtype = "bfloat16" if setting.on_gpu else "float32"
    has_vllm = setting.on_gpu or importlib.util.find_spec("vllm") is not None
    engine = setting.engine or ("vllm" if has_vllm else "transformers")
    if not setting.on_gpu:
        # More actors than cores are no trouble: they work in turn.
        runners |= {"num_gpus_per_env_runner": 0, "num_cpus_per_env_runner": 0.5}
        learners = {"num_learners": learners.get("num_learners", 0), "num_cpus_per_learner": 0.5}
    if engine == "transformers":
        runners["sleep_while_training"] = False
    return (
        GRPOConfig()
        .environment(RANDOM_REWARDS_ID, env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model=setting.model, dtype=dtype, gradient_checkpointing=setting.on_gpu)
        .env_runners(
            engine=engine,
            dtype=dtype,
            max_response_tokens=setting.response_tokens,
            max_num_seqs=setting.sequences,
            gpu_memory_utilization=0.45,
            weight_transfer=layout.get("way", "auto"),
            # On a CPU it only shows that the benchmark works: compiling would take longer than all else.
            vllm={"max_model_len": setting.response_tokens + 256, "enforce_eager": not setting.on_gpu},
            **runners,
        )
        .learners(**learners)
        .training(group_size=setting.group_size, queries_per_step=setting.queries)
    )


def measure(setting: Setting) -> dict[str, Any]:
    """Measure seconds and memory of a layout's steps, in a process of its own."""
    import ray

    verbose = bool(os.environ.get("R3_VERBOSE"))
    ray.init(address="local", include_dashboard=False, log_to_driver=verbose, logging_level=logging.ERROR)
    algorithm: Any = configuration(setting).build_algo()
    try:
        algorithm.train()
        steps = [_step(algorithm, setting) for _ in range(setting.steps)]
        return {**asdict(setting), "steps": steps, "void": why_void(steps)}
    finally:
        algorithm.stop()
        ray.shutdown()


def why_void(steps: Sequence[Mapping[str, float]]) -> str:
    """Return why the steps measure no training; empty if they do."""
    idle = [number for number, step in enumerate(steps, 1) if not 0 < step["grad_norm"] < math.inf]
    if not idle:
        return ""
    norms = ", ".join(f"{steps[number - 1]['grad_norm']:g}" for number in idle)
    return f"the measurement is void: gradient norm {norms} in step {', '.join(map(str, idle))}, so nothing was learned"


def _step(algorithm: Any, setting: Setting) -> dict[str, float]:
    """Take one training step, and read the GPU's memory between its stages."""
    taken: dict[str, float] = {}
    inner = algorithm.run_stage

    def run_stage(stage: Any, *arguments: Any) -> Any:
        result = inner(stage, *arguments)
        if setting.on_gpu:
            taken[stage.__name__] = _taken_gb()
        return result

    algorithm.run_stage = run_stage
    try:
        algorithm.train()
    finally:
        del algorithm.run_stage
    record = algorithm.batch.record
    tokens = record["response/mean_tokens"] * setting.queries * setting.group_size
    found = {
        "generate_s": record["time/collect_rollouts"],
        "generated_tokens_per_s": tokens / record["time/collect_rollouts"],
        "update_s": record["time/update_policy"],
        "sleep_s": record["time/sleep_engines"],
        "wake_and_push_s": record["time/sync_weights"],
        "grad_norm": record["policy/grad_norm"],
        "logp_mismatch_max": record["policy/logp_mismatch_max"],
    }
    optional = {"mfu": "throughput/mfu", "logp_mismatch_mean": "policy/logp_mismatch_mean"}
    found |= {name: record[tag] for name, tag in optional.items() if tag in record}
    stages = {"generating": "collect_rollouts", "asleep": "sleep_engines", "updated": "update_policy"}
    stages["awake"] = "sync_weights"
    return found | {f"{name}_gb": taken[stage] for name, stage in stages.items() if stage in taken}


def _taken_gb() -> float:
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return (total - free) / 1e9


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every layout that the GPUs allow; 1 where a measurement is void, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--layers", type=int, help="layers of the model; default: its shape's own number")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument(
        "--sequences", type=int, nargs="+", default=[256], help="sequences that the engine decodes at once"
    )
    parser.add_argument("--queries", type=int, default=32, help="queries of a step, with 8 responses each")
    parser.add_argument("--response-tokens", type=int, default=512)
    parser.add_argument("--cpu", action="store_true", help="a tiny model on the CPU: shows that the benchmark works")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    import torch

    gpus = 0 if arguments.cpu else torch.cuda.device_count()
    chosen = [layout for layout in arguments.layouts if _is_possible(layout, gpus, arguments.cpu)]
    if not chosen:
        print(f"benchmarks.gpu needs a GPU (nccl: two); this machine has {gpus}", file=sys.stderr)
        return 2
    name = "CPU" if arguments.cpu else torch.cuda.get_device_name(0)
    results = _measure_all(chosen, arguments)
    _show(results, name)
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": name, "results": results}, indent=1))
    for result in results:
        if result["void"]:
            print(f"{result['layout']}: {result['void']}", file=sys.stderr)
    return int(any(result["void"] for result in results))


def _is_possible(layout: str, gpus: int, cpu: bool) -> bool:
    return layout in CPU_LAYOUTS if cpu else LAYOUTS[layout].get("gpus", 1) <= gpus


def _measure_all(layouts: Sequence[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    spawn = multiprocessing.get_context("spawn")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        size, device = ("tiny", "cpu") if arguments.cpu else ("1.5b", "cuda")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            process.submit(save_random_model, folder, size, device, arguments.layers).result()
        sizes = {"steps": arguments.steps, "queries": arguments.queries, "response_tokens": arguments.response_tokens}
        for layout in layouts:
            for sequences in arguments.sequences:
                setting = Setting(layout, folder, sequences=sequences, on_gpu=not arguments.cpu, **sizes)
                print(f"{layout}, {sequences} sequences", file=sys.stderr)
                with ProcessPoolExecutor(1, mp_context=spawn) as process:
                    results.append(process.submit(measure, setting).result())
    return results


def _show(results: Sequence[Mapping[str, Any]], device: str) -> None:
    table = Table(title=device)
    columns = list(results[0]["steps"][0])
    for column in ("layout", "sequences", *columns):
        table.add_column(column)
    for result in results:
        medians = (statistics.median(step[column] for step in result["steps"]) for column in columns)
        table.add_row(result["layout"], str(result["sequences"]), *(f"{value:.3g}" for value in medians))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
