"""The objective of rows that no policy sampled for the step: the gradient of advantage times log-prob."""

import torch

from algorithms.losses.base import LossSettings, Objective


class Direct(Objective):
    """`A`, with the gradient of `A · log π`: there is no ratio to another policy, whatever the loss's settings say."""

    name = "direct"
    not_for_setting = True
    takes_dual_clip = takes_sequence_ratio = False

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective; no token is clipped."""
        return (logprobs - logprobs.detach()).exp() * advantages, torch.zeros_like(ratio, dtype=torch.bool)
