"""Faults on purpose: where a transfer is impossible, the object store must replace it, with a warning."""

import logging
from typing import Any

from benchmarks.gpu_steps.actors import agreement, algorithm, disturb, on_learner
from benchmarks.gpu_steps.step import Job, Outcome


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


def ipc_without_gpu(job: Job) -> Outcome:
    """Choose CUDA IPC between actors that have no GPU."""
    from algorithms.rollout.weight_sync.ipc import IPCRoute

    with algorithm(job, engine="transformers", weight_transfer="object_store") as built:
        _force(built, IPCRoute(), job)
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
    import torch

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
