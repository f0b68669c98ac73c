"""PPO's objective: the clip removes the gradient of a token that has moved too far."""

import torch

from algorithms.losses.base import LossSettings, Objective


class Clip(Objective):
    """PPO's pessimistic objective `min(r·A, clip(r)·A)`.

    Source: PPO, arXiv 1707.06347.
    """

    name = "clip"

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective, and the tokens whose gradient the clip takes away."""
        unclipped = ratio * advantages
        clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high) * advantages
        return torch.minimum(unclipped, clipped), clipped < unclipped
