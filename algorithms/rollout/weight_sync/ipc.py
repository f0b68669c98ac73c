"""Share weights by CUDA IPC: vLLM's engine for it reads the learner's buffer on the GPU that they share.

A few bytes are tried before weights depend on it: a learner shares a small tensor, and its engine reads it.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core.learner.learner_group import LearnerGroup

from algorithms.config.placement import TransferKind
from algorithms.learner.learner import GRPOLearner
from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.serialization import Bucket
from algorithms.rollout.weight_sync.streamed import GroupRoute, bucket_fields, sender_of
from algorithms.rollout.weight_sync.transfer import (
    Failure,
    RunnerCalls,
    TransferUnavailable,
    failures_of,
    in_a_line,
    on_learners,
)

# A handle opens in milliseconds, or not at all.
PROBE_TIMEOUT_S = 60.0
# The names of one variable, the newer first.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_VALUES = 16
# Where `torch.multiprocessing` puts the device into a CUDA tensor's handle; it differs between the two processes.
_DEVICE = 6


@dataclass(frozen=True)
class Loan:
    """A small tensor in a learner's memory.

    Args:
        rebuild: opens it in another process, from `handle`.
        number: that each of its elements is.
    """

    rebuild: Any
    handle: tuple[Any, ...]
    number: float


def lend(learner: GRPOLearner) -> tuple[str, Loan | Failure]:
    """Share a small tensor until `take_back`; return the learner's GPU, and the loan or why there is none."""
    gpu = own_gpu(learner)
    number = float(learner._learner_index + 1)
    try:
        tensor = torch.full((_VALUES,), number, device=compute_device(learner.lm))
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()  # others read it, on streams of their own
        sender_of(learner).lent = tensor
        from torch.multiprocessing.reductions import reduce_tensor

        rebuild, handle = reduce_tensor(tensor)
        return gpu, Loan(rebuild, handle, number)
    except Exception as error:  # returned to the driver, which takes another way
        return gpu, Failure(f"a learner cannot export its memory: {in_a_line(error)}{_allocator_settings()}")


def read(runner: Any, loans: Mapping[str, Loan]) -> None:
    """Open the loan on the runner's GPU, and compare its numbers.

    Raises:
        RuntimeError: it cannot be opened, or holds something else.
    """
    for gpu, device in visible_gpus(runner).items():
        if gpu in loans:
            loan = loans[gpu]
            handle = list(loan.handle)
            if device.type == "cuda":
                handle[_DEVICE] = device.index
            numbers = loan.rebuild(*handle).tolist()  # the view goes with this line
            if numbers != [loan.number] * _VALUES:
                raise RuntimeError(f"read {numbers[0]} where the learner wrote {loan.number}")


def take_back(learner: GRPOLearner) -> None:
    """Free the shared tensor."""
    sender_of(learner).lent = None


def own_gpu(learner: GRPOLearner) -> str:
    """Return the GPU where the learner computes; it sees its neighbors' GPUs too."""
    device = compute_device(learner.lm)
    return gpu_id(device) if device.type == "cuda" else "no GPU"


def visible_gpus(runner: Any) -> dict[str, torch.device]:
    """Return the devices of the runner's process by the ids of their GPUs."""
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return {gpu_id(device): device for device in devices}


def gpu_id(device: torch.device) -> str:
    """Return the id that a GPU has in all processes."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _allocator_settings() -> str:
    """Return the setting that most often stands in the way, where it is set."""
    found = [f"{name}={os.environ[name]}" for name in _ALLOCATOR if "expandable_segments" in os.environ.get(name, "")]
    return f" ({', '.join(found)})" if found else ""


@dataclass(frozen=True)
class IPCChannel:
    """Every learner exports its buffer: each serves the engine on its own GPU."""

    def sends(self, learner: GRPOLearner) -> bool:
        """Return True: all learners send."""
        return True

    def offer(self, learner: GRPOLearner, buffer: torch.Tensor) -> dict[str, tuple[Any, ...]]:
        """Return the buffer's handle, by the id of the GPU that it is on."""
        from torch.multiprocessing.reductions import reduce_tensor

        sender = sender_of(learner)
        if sender.exported is None:  # one export for all buckets of a push: vLLM maps it once and counts one reader
            _, sender.exported = reduce_tensor(buffer)
        return {gpu_id(buffer.device): sender.exported}

    def deliver(self, learner: GRPOLearner, packed: torch.Tensor) -> None:
        """Do nothing: the engines have read the buffer in place."""


class IPCRoute(GroupRoute):
    """Buckets in the learners' memory; a small tensor is tried when learners and runners first meet."""

    kind = TransferKind.IPC
    channel = IPCChannel()
    concurrent = False

    def set_up(self, learner_group: LearnerGroup, calls: RunnerCalls) -> None:
        """Check that each engine shares a GPU with a learner, and reads what the learner writes there."""
        held = set(on_learners(learner_group, own_gpu))
        lonely = sorted(n for n, gpus in calls(visible_gpus).items() if not held.intersection(gpus))
        if lonely:
            raise TransferUnavailable(f"env runners {lonely} share no GPU with a learner")
        failures = failures_of(calls.attempt(_introduce)) or self._probe(learner_group, calls)
        if failures:
            raise TransferUnavailable(
                f"no CUDA IPC between learners and engines ({'; '.join(failures)}); likely causes: expandable_segments "
                "in PYTORCH_CUDA_ALLOC_CONF, or containers that do not share an IPC namespace"
            )

    def _probe(self, learner_group: LearnerGroup, calls: RunnerCalls) -> list[str]:
        """Send a few bytes from every learner to its engine; returns what went wrong, in words."""
        lent = dict(on_learners(learner_group, lend))
        failures = failures_of(lent)
        if not failures:
            loans = {gpu: loan for gpu, loan in lent.items() if isinstance(loan, Loan)}
            read_loan = functools.partial(read, loans=loans)
            failures = failures_of(calls.attempt(read_loan, min(calls.timeout_s, PROBE_TIMEOUT_S)))
        on_learners(learner_group, take_back)
        return failures

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """Return one set of tensors, and where it is on each GPU."""
        handles = {gpu: arguments for offer in offers for gpu, arguments in offer.payload.items()}
        sizes = [spec.nbytes for spec in offers[0].specs]
        return {**bucket_fields(offers[0]), "ipc_handles": handles, "tensor_sizes": sizes}


def _introduce(runner: Any) -> None:
    runner.engine.llm.init_weight_transfer_engine({"init_info": {"packed": True}})
