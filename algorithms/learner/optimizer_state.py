"""An optimizer's state as named tensors, so that it can be kept in safetensors."""

import torch
from torch import nn


def pack_optimizer(lm: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Flatten to `{"parameter name/exp_avg": tensor, …}`; parameters that were never stepped are left out."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in lm.named_parameters()}
    packed = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            packed[f"{names[parameter]}/{key}"] = torch.as_tensor(value).detach().cpu().clone()
    return packed


def unpack_optimizer(lm: nn.Module, optimizer: torch.optim.Optimizer, packed: dict[str, torch.Tensor]) -> None:
    """Put back what `pack_optimizer` gave.

    Raises:
        ValueError: the state names a parameter that the model does not have.
    """
    parameters = dict(lm.named_parameters())
    optimizer.state.clear()
    for name, value in packed.items():
        parameter_name, key = name.rsplit("/", 1)
        if parameter_name not in parameters:
            raise ValueError(f"the optimizer state names {parameter_name!r}, which the model does not have")
        parameter = parameters[parameter_name]
        # Step counts stay on the CPU, where AdamW keeps them.
        moved = value.clone() if key == "step" else value.clone().to(parameter.device)
        optimizer.state[parameter][key] = moved
