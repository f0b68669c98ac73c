"""CISPO's objective: the clip bounds a token's weight."""

import torch

from algorithms.losses.base import LossSettings, Objective


class Cispo(Objective):
    """The clipped ratio as a constant weight on log-probs, `sg(clip(r))·A·logprob`.

    Source: CISPO, arXiv 2506.13585.
    """

    name = "cispo"
    takes_dual_clip = False

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective, and the tokens whose weight the clip bounds."""
        ratio = ratio.detach()
        bounded = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
        return bounded * advantages * logprobs, bounded != ratio
