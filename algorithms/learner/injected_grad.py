"""Inject precomputed gradients into autograd."""

from dataclasses import dataclass
from typing import Any

import torch

from algorithms.models.products import linear

# Rows of the weight whose gradient is added at once, when it is computed in a lower precision than it is summed in.
PART_ROWS = 8192


@dataclass(frozen=True)
class GradientSum:
    """Gradients of the inputs of an output head, added up chunk by chunk; None for those that need none.

    Args:
        hidden: [N, D], in the dtype of the hidden states.
        weight: float32 [V, D]: a sum over chunks in bfloat16 would lose the small ones.
        bias: float32 [V].
    """

    hidden: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None

    @classmethod
    def of(cls, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> "GradientSum":
        """Allocate zeros for each input that requires a gradient; none at all under `torch.no_grad`."""
        needed = [t is not None and t.requires_grad and torch.is_grad_enabled() for t in (hidden, weight, bias)]
        return cls(
            torch.zeros_like(hidden, requires_grad=False) if needed[0] else None,
            torch.zeros_like(weight, dtype=torch.float32, requires_grad=False) if needed[1] else None,
            torch.zeros_like(bias, dtype=torch.float32, requires_grad=False)
            if bias is not None and needed[2]
            else None,
        )

    @property
    def needed(self) -> bool:
        """Return whether any input needs its gradient."""
        return any(gradient is not None for gradient in (self.hidden, self.weight, self.bias))

    def add(self, rows: slice, by_logit: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> None:
        """Add a chunk.

        Args:
            rows: the chunk's tokens.
            by_logit: [n, V], the loss's gradient by the raw logits, in the dtype to multiply in.
            hidden: [n, D], the chunk's hidden states, in the same dtype.
            weight: [V, D], in the same dtype.
        """
        if self.bias is not None:
            self.bias.add_(by_logit.sum(dim=0, dtype=torch.float32))
        # Plain products under autocast, too: the dtypes are chosen already.
        with torch.autocast(hidden.device.type, enabled=False):
            if self.hidden is not None:
                self.hidden[rows] = linear(by_logit, weight.T)
            if self.weight is None:
                return
            if hidden.dtype == self.weight.dtype:
                self.weight.addmm_(by_logit.T, hidden)
                return
            # In parts: the whole product in the lower precision never exists at once.
            for part, product in zip(self.weight.split(PART_ROWS), by_logit.split(PART_ROWS, dim=1), strict=True):
                part.add_(product.T @ hidden)


class InjectGrad(torch.autograd.Function):
    """Inject precomputed gradients: a zero scalar whose backward pass emits them."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, *tensors: torch.Tensor | None) -> torch.Tensor:
        """Keep the gradients: `tensors` are weight, bias, and the gradients of hidden, weight and bias."""
        ctx.save_for_backward(*tensors[2:])
        return torch.zeros((), device=hidden.device)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Emit the gradients, times the upstream gradient."""
        # In place: the weight's gradient exists once. A second backward finds it changed, and raises.
        scaled = [None if gradient is None else gradient.mul_(upstream[0]) for gradient in ctx.saved_tensors]
        return (*scaled, None, None, None)


def inject_grad(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, gradients: GradientSum
) -> torch.Tensor:
    """Return the scalar 0, float32, whose `backward()` gives `gradients` to the three inputs."""
    return InjectGrad.apply(hidden, weight, bias, gradients.hidden, gradients.weight, gradients.bias)
