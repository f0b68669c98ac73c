"""Try CUDA IPC with a few bytes before weights depend on it: a learner shares a small tensor, its engine reads it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from algorithms.learner.learner import GRPOLearner
from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.streamed import sender_of
from algorithms.rollout.weight_sync.transfer import Failure, in_a_line

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
    """The setting that most often stands in the way, where it is set."""
    found = [f"{name}={os.environ[name]}" for name in _ALLOCATOR if "expandable_segments" in os.environ.get(name, "")]
    return f" ({', '.join(found)})" if found else ""
