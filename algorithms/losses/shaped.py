"""LUFFY's objective: a shaped ratio in place of the clip."""

import torch

from algorithms.config.schema import Settings, setting
from algorithms.losses.base import LossSettings, Objective


class ShapedSettings(Settings):
    """The shape."""

    gamma: float = setting(0.1, "γ of `r / (r + γ)`.", gt=0)


class Shaped(Objective):
    """`r / (r + γ) · A`: a token that the policy hardly writes keeps a gradient, and none is clipped.

    Source: LUFFY, arXiv 2504.14945.
    """

    name = "shaped"
    settings_class = ShapedSettings
    takes_dual_clip = False
    not_for_setting = True
    settings: ShapedSettings

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective; no token is clipped."""
        return ratio / (ratio + self.settings.gamma) * advantages, torch.zeros_like(ratio, dtype=torch.bool)
