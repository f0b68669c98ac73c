"""CUDA IPC: the engine reads the learner's buffer on the GPU that they share, through vLLM's own IPC engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.base import TransferUnavailable
from algorithms.rollout.weight_sync.calls import Failure, RunnerCalls, on_learners
from algorithms.rollout.weight_sync.sender import sender_of
from algorithms.rollout.weight_sync.streamed import bucket_fields
from algorithms.rollout.weight_sync.wire import Bucket


@dataclass(frozen=True)
class IPCLink:
    """Every learner exports its buffer: each serves the engine on its own GPU."""

    def sends(self, learner: Any) -> bool:
        """All do."""
        return True

    def offer(self, learner: Any, buffer: torch.Tensor) -> dict[str, tuple[Any, ...]]:
        """The buffer's handle, by the id of the GPU that it is on."""
        from torch.multiprocessing.reductions import reduce_tensor

        sender = sender_of(learner)
        if sender.exported is None:  # one export for all buckets of a push: vLLM maps it once and counts one reader
            _, sender.exported = reduce_tensor(buffer)
        return {_gpu_id(buffer.device): sender.exported}

    def deliver(self, learner: Any, packed: torch.Tensor) -> None:
        """Nothing: the engines have read it where it lies."""


class IPCRoute:
    """Buckets that lie in the learners' memory."""

    link = IPCLink()
    concurrent = False

    def prepare(self, learner_group: Any, calls: RunnerCalls) -> None:
        """Check that each engine shares a GPU with a learner."""
        held = set(on_learners(learner_group, _own_gpu))
        lonely = sorted(number for number, gpus in calls(_visible_gpus).items() if not held.intersection(gpus))
        if lonely:
            raise TransferUnavailable(f"env runners {lonely} share no GPU with a learner")
        failures = [answer.message for answer in calls.attempt(_introduce).values() if isinstance(answer, Failure)]
        if failures:
            raise TransferUnavailable(f"no CUDA IPC: {'; '.join(sorted(set(failures)))}")

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """One set of tensors, and where it lies on each GPU."""
        handles = {gpu: arguments for offer in offers for gpu, arguments in offer.payload.items()}
        sizes = [spec.nbytes for spec in offers[0].specs]
        return {**bucket_fields(offers[0]), "ipc_handles": handles, "tensor_sizes": sizes}


def _introduce(runner: Any) -> None:
    runner.engine.llm.init_weight_transfer_engine({"init_info": {"packed": True}})


def _own_gpu(learner: Any) -> str:
    """Where the learner computes; it sees its neighbors' GPUs too."""
    device = compute_device(learner.lm)
    return _gpu_id(device) if device.type == "cuda" else "no GPU"


def _visible_gpus(runner: Any) -> list[str]:
    return [_gpu_id(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]


def _gpu_id(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)
