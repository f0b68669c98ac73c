"""The anchor: a penalty on the distance from the old policy."""

import torch

from algorithms.losses.base import LossTerm


class Anchor(LossTerm):
    """`|log π - log π_old|` of each token. Its gradient is 0 where the policy has not moved.

    Source: KL-Cov, arXiv 2505.22617.
    """

    name = "anchor"

    def token_loss(self, logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
        """Return the distance, float [N]."""
        return (logprobs - old_logprobs).abs()
