"""The entropy bonus; entropies of distributions over the vocabulary, and their gradients."""

import torch
from torch.nn import functional

from algorithms.losses.base import LossTerm


class Entropy(LossTerm):
    """`-H` of the next-token distribution: a row's weight is what a nat of entropy is worth."""

    name = "entropy"

    def token_loss(self, entropies: torch.Tensor) -> torch.Tensor:
        """Return minus the entropies, float [N]."""
        return -entropies


def entropies_of(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of each row, float [n], finite where tokens are impossible."""
    return torch.special.entr(probabilities).sum(dim=-1)


def gradient_of_entropies(probabilities: torch.Tensor, entropies: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """Return `slope · dH/dlogit`, which is `-p (log p + H)`: float32 [n, V], finite where tokens are impossible."""
    gradient = torch.special.entr(probabilities)
    return gradient.addcmul_(probabilities, entropies[:, None], value=-1.0).mul_(slope[:, None])


def differentiable_entropies(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of each row of logits, float [n], with a finite gradient for impossible tokens."""
    logprobs = functional.log_softmax(logits, dim=-1).clamp(min=torch.finfo(logits.dtype).min)
    return -(logprobs.exp() * logprobs).sum(dim=-1)
