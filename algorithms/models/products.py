"""Float32 products with large weights on a CPU, by oneDNN in place of MKL.

MKL, which PyTorch calls for them, has slow kernels for processors that Intel did not make: with the weights of a model
of 135M parameters it reaches 209 GFLOP/s on two cores of an AMD EPYC with AVX-512, oneDNN 458.
Both sum in float32.
"""

from typing import Any

import torch
from torch.nn import functional

# Elements of a weight from which on oneDNN is worth its calls.
LARGE = 2**16


def uses_onednn(weight: torch.Tensor) -> bool:
    """Return whether `linear` computes with this weight by oneDNN: float32 on a CPU with AVX-512, outside autocast."""
    return bool(
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.numel() >= LARGE
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and not torch.is_autocast_enabled("cpu")
    )


def linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return `torch.nn.functional.linear`, differentiable as that is.

    Args:
        values: float [..., D].
        weight: float [V, D].
        bias: float [V].
    """
    if values.dtype != torch.float32 or not values.numel() or not uses_onednn(weight):
        return functional.linear(values, weight, bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (values, weight, bias)):
        return _Linear.apply(values, weight, bias)
    return _product(values, weight, bias)


class OneDNNLinear(torch.nn.Linear):
    """A linear layer that computes by `linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (torch's name)
        """Return [..., V] for [..., D]."""
        return linear(input, self.weight, self.bias)


def use_onednn(lm: torch.nn.Module) -> None:
    """Let a model's large linear layers compute by `linear`; parameters and their names stay as they are."""
    for module in lm.modules():
        if type(module) is torch.nn.Linear and uses_onednn(module.weight):
            module.__class__ = OneDNNLinear


def _product(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        ctx.save_for_backward(values, weight)
        return _product(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        values, weight = ctx.saved_tensors
        gradient = gradients[0]
        flat = gradient.reshape(-1, gradient.shape[-1])
        of_values, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_values else None,
            _product(flat.t(), values.reshape(-1, values.shape[-1]).t()) if of_weight else None,
            flat.sum(0) if of_bias else None,
        )
