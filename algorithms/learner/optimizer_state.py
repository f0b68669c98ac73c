"""An optimizer's state as named tensors, so that it can be kept in safetensors."""

from collections.abc import Iterator

import torch
from torch import nn

from algorithms.learner.sharding import put, whole


def optimizer_tensors(lm: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Every moment and step count, whole: `("parameter name/exp_avg", tensor)`, in the order of the parameters.

    Parameters that were never stepped are left out. All learners have to iterate to the end where the model is
    sharded.
    """
    for name, parameter in lm.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", whole(torch.as_tensor(value))


def pack_optimizer(lm: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """`optimizer_tensors` as a dict of copies on the CPU."""
    return {name: value.cpu().clone() for name, value in optimizer_tensors(lm, optimizer)}


def put_optimizer_tensors(lm: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Put back some of what `optimizer_tensors` gave, this learner's shards of it.

    Raises:
        ValueError: the state names a parameter that the model does not have, or has in another shape.
    """
    parameters = dict(lm.named_parameters())
    for name, value in tensors.items():
        parameter_name, key = name.rsplit("/", 1)
        if parameter_name not in parameters:
            raise ValueError(f"the optimizer state names {parameter_name!r}, which the model does not have")
        parameter = parameters[parameter_name]
        if value.ndim and value.shape != parameter.shape:
            raise ValueError(f"the optimizer state has {name!r} in shape {tuple(value.shape)}")
        if key == "step":  # stays on the CPU, where AdamW keeps it
            optimizer.state[parameter][key] = value.clone()
        else:
            optimizer.state[parameter][key] = torch.zeros_like(parameter)
            put(value, optimizer.state[parameter][key])


def unpack_optimizer(lm: nn.Module, optimizer: torch.optim.Optimizer, packed: dict[str, torch.Tensor]) -> None:
    """Replace the whole state by what `pack_optimizer` gave; raises ValueError as `put_optimizer_tensors`."""
    optimizer.state.clear()
    put_optimizer_tensors(lm, optimizer, packed)
