"""AdamW by where the parameters are: which kernel, how many threads, the bits of its moments, its state."""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence

import torch

from algorithms.learner.sharding import put
from algorithms.utils.process import logger_level


def make_adamw(
    parameters: Sequence[torch.Tensor], *, lr: float, weight_decay: float, offload: bool, eight_bit: bool = False
) -> torch.optim.Optimizer:
    """Return AdamW over these parameters, fused on a GPU and for offloaded shards.

    On a GPU the fused kernel needs no temporary memory; the default one makes about 4 bytes a parameter of it. On the
    CPU it is three times as fast and rounds differently in the last bit, so models that train there keep the default.

    Args:
        parameters: on the device where they are stepped.
        lr: learning rate until a step sets another.
        weight_decay: as in AdamW.
        offload: whether the parameters are shards on the CPU of a model that computes on a GPU.
        eight_bit: whether moments have 8 bits and a float32 scale for each 256 of them; small tensors keep float32.

    Source of 8-bit moments: https://arxiv.org/abs/2110.02861
    """
    if eight_bit:
        with logger_level("bitsandbytes", logging.ERROR):  # warns of kernels that nothing here uses
            from bitsandbytes.optim import AdamW8bit
        return AdamW8bit(parameters, lr=lr, weight_decay=weight_decay)
    on_gpu = any(parameter.device.type == "cuda" for parameter in parameters)
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=(offload or on_gpu) or None)


# What 8-bit moments are read with: scales of blocks, and the values of the codes.
_BLOCKWISE = {"absmax1", "absmax2", "qmap1", "qmap2"}


def restore_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, name: str, value: torch.Tensor) -> None:
    """Restore one tensor of a parameter's state; `name` is its own behind the parameter's.

    Raises:
        ValueError: moments of the other kind, or it has another shape.
    """
    key, eight_bit = name.rpartition("/")[2], not isinstance(optimizer, torch.optim.AdamW)
    if key != "step" and key.startswith("exp_avg") == eight_bit:
        fix = "float32" if eight_bit else "8bit"
        raise ValueError(f"the optimizer state has {name!r}, of another kind of moments; fix: learners.moments={fix}")
    if value.ndim and key not in _BLOCKWISE and value.shape != parameter.shape:
        raise ValueError(f"the optimizer state has {name!r} in shape {tuple(value.shape)}")
    state = optimizer.state[parameter]
    if eight_bit:
        state[key] = int(value) if key == "step" else value.to(parameter.device, copy=True)
    elif key == "step":
        state[key] = place_step_count(optimizer, parameter, value)
    else:
        state[key] = torch.zeros_like(parameter)
        put(value, state[key])


def place_step_count(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return a restored step count on the device where AdamW keeps it: the parameter's if it is fused, else the CPU."""
    fused = bool(optimizer.defaults.get("fused") or optimizer.defaults.get("capturable"))
    return count.clone().to(parameter.device if fused else "cpu")


def step_threads(num_threads: int | None, learners: int) -> int:
    """Return the threads of an optimizer step on the CPU.

    Args:
        num_threads: `learners.num_threads`; None: an equal share of this machine's cores.
        learners: that may step on this machine at the same time.
    """
    return num_threads or max(1, _cores() // max(1, learners))


def _cores() -> int:
    """Return the cores that this process may use; all of the machine's where the system, such as macOS, names none."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute with this many threads inside the block, and with the previous number after it.

    Ray sets OMP_NUM_THREADS of an actor to the CPUs that it reserves, one by default.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
