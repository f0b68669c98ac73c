"""AdamW by where the parameters are: which kernel, how many threads, the bits of weights and moments, its state."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from algorithms.learner.sharding import put
from algorithms.utils.machine import cores
from algorithms.utils.process import logger_level

# The state of a bfloat16 parameter has the lower 16 bits of its float32 value.
LOWER_HALF = "lower_half"


class SplitAdamW(torch.optim.Optimizer):
    """Mixin before an optimizer: a bfloat16 parameter is the upper half of a float32 value, which is what it steps.

    Numbers are those of float32 weights, from the gradients that there are. One parameter at a time is whole, and its
    gradient is gone after its step.

    Source: Split-SGD-BF16, https://arxiv.org/abs/2005.04680
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step all parameters that have a gradient."""
        of_groups = (parameter for group in self.param_groups for parameter in group["params"])
        halves = [p for p in of_groups if p.grad is not None and p.dtype == torch.bfloat16]
        gradients = [parameter.grad for parameter in halves]
        for parameter in halves:
            parameter.grad = None
        super().step(closure)  # those that a model keeps in float32
        while halves:
            parameter = halves.pop()
            half, lower = parameter.data, self.state[parameter].get(LOWER_HALF)
            parameter.data = half.float() if lower is None else join(half, lower)
            parameter.grad = gradients.pop().float()
            super().step()
            parameter.grad = None
            upper, self.state[parameter][LOWER_HALF] = split(parameter.data)
            parameter.data = half.copy_(upper)  # where it was: others may hold its memory

    def load_state_dict(self, state_dict: Any) -> None:
        """Restore a state in the types that it has: PyTorch would make it the parameters' bfloat16."""
        super().load_state_dict(state_dict)
        numbers = (number for group in state_dict["param_groups"] for number in group["params"])
        own = (parameter for group in self.param_groups for parameter in group["params"])
        for number, parameter in zip(numbers, own, strict=True):
            for key, value in state_dict["state"].get(number, {}).items():
                if key != "step" and isinstance(value, torch.Tensor):
                    self.state[parameter][key] = value.to(parameter.device, copy=True)


def split(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split float32 into the nearest bfloat16 and 16 more bits, an int16, from which `join` makes the same float32."""
    halves = (value.view(torch.int32) + 2**15).unsqueeze(-1).view(torch.int16)  # little-endian
    return halves[..., 1].contiguous().view(torch.bfloat16), halves[..., 0].contiguous()


def join(upper: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
    """Return the float32 value that `split` made the two from."""
    halves = torch.stack([lower, upper.view(torch.int16)], dim=-1)
    return halves.view(torch.int32).squeeze(-1).sub_(2**15).view(torch.float32)


def make_adamw(
    parameters: Sequence[torch.Tensor],
    *,
    lr: float,
    weight_decay: float,
    offload: bool,
    eight_bit: bool = False,
    split_weights: bool = False,
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
        split_weights: whether bfloat16 parameters are the upper halves of float32 ones, see `SplitAdamW`.

    Source of 8-bit moments: https://arxiv.org/abs/2110.02861
    """
    on_gpu = any(parameter.device.type == "cuda" for parameter in parameters)
    kind: Any = torch.optim.AdamW
    options: dict[str, Any] = {"fused": (offload or on_gpu) or None}
    if eight_bit:
        with logger_level("bitsandbytes", logging.ERROR):  # warns of kernels that nothing here uses
            from bitsandbytes.optim import AdamW8bit
        kind, options = AdamW8bit, {}
    if split_weights:
        kind = type(kind.__name__, (SplitAdamW, kind), {})
    return kind(parameters, lr=lr, weight_decay=weight_decay, **options)


# What 8-bit moments are read with: scales of blocks, and the values of the codes.
_BLOCKWISE = {"absmax1", "absmax2", "qmap1", "qmap2"}


def restore_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, name: str, value: torch.Tensor) -> None:
    """Restore one tensor of a parameter's state; `name` is its own behind the parameter's.

    Raises:
        ValueError: weights or moments of the other kind, or it has another shape.
    """
    key, eight_bit = name.rpartition("/")[2], not isinstance(optimizer, torch.optim.AdamW)
    if key == LOWER_HALF and not isinstance(optimizer, SplitAdamW):
        raise ValueError(f"the optimizer state has {name!r}, half of a weight; fix: learners.weights=bfloat16")
    if key not in ("step", LOWER_HALF) and key.startswith("exp_avg") == eight_bit:
        fix = "float32" if eight_bit else "8bit"
        raise ValueError(f"the optimizer state has {name!r}, of another kind of moments; fix: learners.moments={fix}")
    if value.ndim and key not in _BLOCKWISE and value.shape != parameter.shape:
        raise ValueError(f"the optimizer state has {name!r} in shape {tuple(value.shape)}")
    state = optimizer.state[parameter]
    if key == "step":
        state[key] = int(value) if eight_bit else place_step_count(optimizer, parameter, value)
    elif eight_bit or key == LOWER_HALF:
        state[key] = value.to(parameter.device, copy=True)
    else:
        state[key] = torch.zeros_like(parameter, dtype=value.dtype)
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
    return num_threads or max(1, cores() // max(1, learners))


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
