"""Steps with RLlib's learners and env runners: where they compute, pushes of weights, sleep and wake-up, and faults."""

import logging
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.gpu_steps.agreement import Agreement, compare, requests, rows_of
from benchmarks.gpu_steps.engine import model_folder
from benchmarks.gpu_steps.step import Job, Outcome
from benchmarks.random_rewards import RANDOM_REWARDS_ID

CYCLES = 5
GB = 1e9


@contextmanager
def algorithm(job: Job, **settings: Any) -> Iterator[Any]:
    """Build the algorithm of `_config`, and stop it at the end."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level=logging.WARNING)
    built = _config(job, **settings).build_algo()
    try:
        yield built
    finally:
        built.stop()
        ray.shutdown()


def _config(
    job: Job,
    *,
    actors: bool = True,
    gpus: tuple[float, float] = (0.51, 0.49),
    training: Mapping[str, Any] = MappingProxyType({"group_size": 4, "queries_per_step": 4}),
    **env_runners: Any,
) -> Any:
    """Configure GRPO with a learner and an engine.

    Args:
        job: of the step.
        actors: whether they are actors; else both are in this process.
        gpus: share of the env runner and of the learner, where they are actors.
        training: settings of the section.
        env_runners: settings of the section, over those for every step.
    """
    from algorithms.grpo.config import GRPOConfig

    runners: dict[str, Any] = {
        "dtype": job.dtype,
        "max_response_tokens": 24 if job.small else 256,
        "max_num_seqs": 8 if job.small else 128,
        "num_cpus_per_env_runner": 0.5,
    }
    learners: dict[str, Any] = {"num_cpus_per_learner": 0.5}
    if actors:
        runners |= {"num_env_runners": 1, "num_gpus_per_env_runner": gpus[0] if job.on_gpu else 0}
        learners |= {"num_learners": 1, "num_gpus_per_learner": gpus[1] if job.on_gpu else 0}
    elif job.on_gpu:
        learners["num_gpus_per_learner"] = 1
    options = {"max_model_len": 256 if job.small else 2048, "enforce_eager": not job.on_gpu}
    options |= env_runners.pop("vllm", {})
    return (
        GRPOConfig()
        .environment(RANDOM_REWARDS_ID, env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model=model_folder(job), dtype=job.dtype, gradient_checkpointing=job.on_gpu)
        .env_runners(
            **({"gpu_memory_utilization": 0.3 if job.small else 0.4} if job.on_gpu else {}),
            **({"vllm": options} if env_runners.get("engine") == "vllm" else {}),
            **(runners | env_runners),
        )
        .learners(**learners)
        .training(lr=1e-5, **training)
    )


def agreement(built: Any, job: Job) -> Agreement:
    """Sample with the engine, and compare with the learner's log-probs of the same tokens."""
    asked = requests(16, 24) if job.small else requests(64, 256)
    completions = on_runner(built, lambda runner: runner.engine.generate(asked))
    rows = rows_of(asked, completions)
    scored = on_learner(built, lambda learner: learner.score(rows, entropy=False))
    return compare(rows, [logprobs for logprobs, _ in scored])


def on_runner(built: Any, call: Any) -> Any:
    """Call a function with the one env runner."""
    local = not built.env_runner_group.num_remote_env_runners()
    (answer,) = built.env_runner_group.foreach_env_runner(call, local_env_runner=local)
    return answer


def on_learner(built: Any, call: Any) -> Any:
    """Call a function with the one learner."""
    from algorithms.learner.group import each_learner

    (answer,) = each_learner(built.learner_group, call)
    return answer


def disturb(learner: Any) -> None:
    """Change every weight by a tenth, as a new version."""
    with torch.no_grad():
        for parameter in learner.lm.parameters():
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    learner._weights_seq_no += 1


def rllib(job: Job) -> Outcome:
    """Run learner and runner with the transformers engine: their devices, a push, and two steps that learn."""
    with algorithm(job, engine="transformers") as built:
        places = {
            "learner": on_learner(built, lambda learner: _place(learner.lm)),
            "runner": on_runner(built, lambda runner: _place(runner.engine.model)),
        }
        on_learner(built, disturb)
        started = time.perf_counter()
        built.rollout_workers.push_weights()
        push_s = time.perf_counter() - started
        found = agreement(built, job)
        norms = []
        for _ in range(2):
            built.train()
            norms.append(built.batch.record["policy/grad_norm"])
    wrong = list(found.wrong)
    if not all(norm > 0 for norm in norms):
        wrong.append(f"gradient norms {norms}: nothing was learned")
    if job.on_gpu and len({place["gpu"] for place in places.values()}) != 1:
        wrong.append("learner and runner do not share a GPU")
    if job.on_gpu and any(not place["device"].startswith("cuda") for place in places.values()):
        wrong.append("one of them does not compute on the GPU")
    where = ", ".join(f"{name} on {place['device']}" for name, place in places.items())
    summary = f"{where}; push through the object store {push_s:.2g} s, {found}, gradient norm {norms[-1]:.3g}"
    return Outcome(
        summary, {"places": places, "push_s": push_s, "agreement": found.figures, "grad_norms": norms}, wrong
    )


def _place(lm: Any) -> dict[str, str]:
    device = next(lm.parameters()).device
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else "none"
    return {"device": str(device), "gpu": gpu, "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "unset")}


def sleep_and_push(job: Job) -> Outcome:
    """Sleep, push, wake, five times, with the GPU's memory between the stages; the engine must follow the learner."""
    way = job.options["way"]
    transfer = {} if way == "in_process" else {"weight_transfer": way}
    with algorithm(job, actors=way != "in_process", engine="vllm", sleep_while_training=True, **transfer) as built:
        first = agreement(built, job)
        cycles = [_cycle(built, job) for _ in range(CYCLES)]
        held = on_runner(built, lambda runner: runner.engine.weights_version)
    wrong = [*first.wrong, *(message for cycle in cycles for message in cycle.pop("wrong"))]
    if held != built.rollout_workers.version:
        wrong.append(f"the engine holds version {held}, {built.rollout_workers.version} was pushed")
    means = {name: statistics.median(cycle[name] for cycle in cycles) for name in ("sleep_s", "push_s")}
    largest = max(cycle["agreement"]["mean"] for cycle in cycles)
    summary = f"sleep {means['sleep_s']:.2g} s, push and wake {means['push_s']:.2g} s, largest mean gap {largest:.2g}"
    if job.on_gpu:
        awake, asleep = cycles[-1]["awake_gb"], cycles[-1]["asleep_gb"]
        summary += f", GPU {awake:.1f} GB awake, {asleep:.1f} asleep, {awake - cycles[0]['awake_gb']:+.2f} in 5 cycles"
    return Outcome(summary, {"cycles": cycles, "first": first.figures}, wrong)


def _cycle(built: Any, job: Job) -> dict[str, Any]:
    started = time.perf_counter()
    built.rollout_workers.sleep_engines()
    slept = time.perf_counter()
    memory = {"asleep_gb": taken_gb(job)}
    on_learner(built, disturb)
    pushed = time.perf_counter()
    built.rollout_workers.push_weights()
    woken = time.perf_counter()
    memory["awake_gb"] = taken_gb(job)
    found = agreement(built, job)
    memory["generating_gb"] = taken_gb(job)
    print({"sleep_s": slept - started, "push_s": woken - pushed, **memory}, found)
    times = {"sleep_s": slept - started, "push_s": woken - pushed}
    return {**times, **memory, "agreement": found.figures, "wrong": found.wrong}


def taken_gb(job: Job) -> float:
    """Return the used memory of the first GPU, all processes together; 0 without one."""
    if not job.on_gpu:
        return 0.0
    free, total = torch.cuda.mem_get_info(0)
    return (total - free) / GB


class Warnings(logging.Handler):
    """Collects the library's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        logging.getLogger("algorithms").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.messages.append(record.getMessage())
        print(record.getMessage())


def expandable_segments(job: Job) -> Outcome:
    """Put the learner's memory in expandable segments, which CUDA IPC may not share: the run must continue."""
    with algorithm(job, engine="vllm", sleep_while_training=True) as built:
        on_learner(built, _expand)
        return _push(built, job, must_fall_back=False)


def nccl_on_one_gpu(job: Job) -> Outcome:
    """Make an NCCL group of two processes on one GPU, which NCCL refuses."""
    from algorithms.rollout.weight_sync.nccl import NCCLRoute
    from algorithms.rollout.weight_sync.vllm_backends import backend_name

    options = {"weight_transfer_config": {"backend": backend_name("nccl")}}
    with algorithm(job, engine="vllm", weight_transfer="object_store", vllm=options) as built:
        _force(built, NCCLRoute(), job)
        return _push(built, job, must_fall_back=True)


def _force(built: Any, route: Any, job: Job) -> None:
    """Force a transfer that `auto` would not choose for this placement, while open."""
    from algorithms.rollout.weight_sync.choice import OrObjectStore
    from algorithms.rollout.weight_sync.serialization import Serialization
    from algorithms.rollout.weight_sync.streamed import StreamedTransfer

    serialization = Serialization(job.dtype)
    built.rollout_workers.transfer = OrObjectStore(StreamedTransfer(route, serialization), serialization)


def _expand(learner: Any) -> None:
    """Free what torch keeps, so that new memory comes in expandable segments."""
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")


def _push(built: Any, job: Job, *, must_fall_back: bool) -> Outcome:
    """Push twice; check that the engine follows, and the warnings."""
    warned = Warnings()
    gaps = []
    for _ in range(2):
        on_learner(built, disturb)
        built.rollout_workers.push_weights()
        gaps.append(agreement(built, job))
    said = [message for message in warned.messages if "object store" in message]
    wrong = [message for gap in gaps for message in gap.wrong]
    if must_fall_back and not said:
        wrong.append("nothing said that the object store took over")
    if built.rollout_workers.restarts:
        wrong.append(f"{built.rollout_workers.restarts} env runners were restarted")
    way = f"fell back: {said[0]}" if said else "worked without falling back"
    return Outcome(f"{way}; {gaps[-1]}", {"warnings": warned.messages, "agreement": gaps[-1].figures}, wrong)
