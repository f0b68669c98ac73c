"""A frozen base in 4 bits, NF4, beneath an adapter: QLoRA (arXiv 2305.14314), without its second quantization.

Only the learner holds the codes. Engines and files get the weights that they stand for, with the adapter added, so that
both compute the same model.
"""

import logging
from typing import Any

import torch
from torch import nn

from algorithms.config.errors import ConfigError
from algorithms.models.products import OneDNNLinear
from algorithms.utils.process import logger_level

# Weights that share a scale, as in the paper.
BLOCK = 64
CODES, SCALES = "nf4_codes", "nf4_scales"


class NF4Linear(nn.Linear):
    """A linear layer whose weight is dequantized each time that it is read; one with gradients only for its input."""

    nf4_codes: torch.Tensor
    nf4_scales: torch.Tensor
    nf4_dtype: torch.dtype

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # nn.Linear has a parameter
        """[outputs, inputs], in the dtype that it was quantized from."""
        from bitsandbytes.functional import QuantState, dequantize_4bit

        # In rows of a block: on the CPU blocks that end within a row come out wrong. The table of levels is not read.
        shape = torch.Size((len(self.nf4_scales), BLOCK))
        state = QuantState(self.nf4_scales, shape, blocksize=BLOCK, quant_type="nf4", dtype=self.nf4_dtype)
        return dequantize_4bit(self.nf4_codes, state).view(self.out_features, self.in_features)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return [..., outputs] of states [..., inputs]."""
        return _Product.apply(states, self)


class _Product(torch.autograd.Function):
    """The layer's product; its backward pass dequantizes the weight again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, layer: NF4Linear) -> torch.Tensor:
        ctx.layer = layer
        return nn.functional.linear(states, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient @ ctx.layer.weight.to(gradient.dtype), None


def quantize_base(layers: dict[str, Any], device: torch.device) -> None:
    """Replace the frozen weights under adapters by their codes on a device, in place, one layer after another.

    Args:
        layers: that have an adapter, by name, see `adapted_layers`.
        device: computes the codes, and then holds them.

    Raises:
        ConfigError: a layer that is no `nn.Linear`, or whose weights do not fill blocks.
    """
    with logger_level("bitsandbytes", logging.ERROR):  # warns of kernels that nothing here uses
        from bitsandbytes.functional import quantize_4bit

    for name, layer in layers.items():
        base = layer.base_layer
        if type(base) not in (nn.Linear, OneDNNLinear) or base.weight.numel() % BLOCK:
            raise ConfigError(
                f"rl_module.lora_base: {name} is a {type(base).__name__} with {base.weight.numel()} weights, and only "
                f"nn.Linear is quantized, in blocks of {BLOCK}; fix: rl_module.lora_base=dtype"
            )
        weight = base.weight.detach().to(device)
        codes, state = quantize_4bit(weight.reshape(-1, BLOCK), blocksize=BLOCK, quant_type="nf4")
        del base.weight
        base.__class__ = NF4Linear
        base.register_buffer(CODES, codes)
        base.register_buffer(SCALES, state.absmax)
        vars(base)["nf4_dtype"] = weight.dtype
