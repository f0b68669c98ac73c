"""Mirror descent's proximity term: the divergence from the policy at the step's start."""

import torch

from algorithms.losses.base import MAX_LOG_RATIO, LossTerm


class Proximity(LossTerm):
    """`r·log r - r + 1` of each token, `r = π/π_old`: an estimate of KL(π ‖ π_old) from tokens that π_old sampled.

    Value and gradient, `r·log r`, are the KL's in expectation; it is never negative, and 0 where the policy has not
    moved. A ratio above exp(20) has no gradient.

    Source: MDPO, arXiv 2005.09814, whose KL is in closed form; the estimate is ours.
    """

    name = "proximity"

    def token_loss(self, logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
        """Return the estimates, float [N]."""
        log_ratio = (logprobs - old_logprobs.detach()).clamp(max=MAX_LOG_RATIO)
        return log_ratio.exp() * (log_ratio - 1.0) + 1.0
