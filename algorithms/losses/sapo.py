"""SAPO's objective: a soft gate instead of the clip."""

import torch

from algorithms.config.schema import Settings, setting
from algorithms.losses.base import LossSettings, Objective


class SapoSettings(Settings):
    """How fast a token's weight falls as its ratio moves away from 1."""

    tau_positive: float = setting(1.0, "Temperature of the gate for positive advantages.", gt=0)
    tau_negative: float = setting(
        1.05, "Temperature of the gate for other advantages: higher, so that failures lose weight sooner.", gt=0
    )


class Sapo(Objective):
    """`f(r) · A` with `f(r) = sigmoid(tau · (r - 1)) · 4 / tau`, and `tau` by the sign of the advantage.

    Its slope, `4 p (1 - p)` with `p = sigmoid(tau · (r - 1))`, is 1 at `r = 1` and falls smoothly on both sides. No
    token is silenced, so that `policy/clip_fraction` is 0. `clip_low` and `clip_high` have no effect.

    Source: SAPO, arXiv 2511.20347; checked against third-party implementations.
    """

    section = "sapo"
    settings_class = SapoSettings
    takes_dual_clip = False
    settings: SapoSettings

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gated objective; no token is clipped."""
        positive = torch.full_like(advantages, self.settings.tau_positive)
        tau = torch.where(advantages > 0, positive, torch.full_like(advantages, self.settings.tau_negative))
        gate = torch.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau)
        return gate * advantages, torch.zeros_like(ratio, dtype=torch.bool)
