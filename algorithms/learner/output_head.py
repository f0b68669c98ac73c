"""From last hidden states to distributions over the vocabulary, for as many tokens as fit in memory at once."""

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class OutputHead:
    """The output embedding of a causal LM and what becomes of its logits.

    Args:
        weight: float [V, D], in the dtype to multiply in.
        bias: float [V], in the same dtype.
        temperature: divides the logits, as in sampling.
        softcap: caps logits at ±softcap by tanh, before the temperature (Gemma).
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    temperature: float
    softcap: float | None

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 [n, V] logits of the distribution that is sampled from, for hidden states [n, D]."""
        logits = functional.linear(hidden, self.weight, self.bias).float()
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        # Nobody else holds this tensor, and no derivative needs its old value.
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)

    def cap_slope(self, logits: torch.Tensor) -> torch.Tensor | None:
        """The derivative of the cap where it gave these logits, float32 [n, V]; None without a cap."""
        return None if self.softcap is None else 1.0 - (logits * (self.temperature / self.softcap)).square_()


def compute_dtype(hidden: torch.Tensor) -> torch.dtype:
    """Autocast's dtype where that is on, as for any matrix product; otherwise that of the hidden states."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def entropies_of(probabilities: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of each row, float [n], finite where tokens are impossible."""
    return torch.special.entr(probabilities).sum(dim=-1)
