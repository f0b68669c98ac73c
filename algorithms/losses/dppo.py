"""DPPO's objective: a trust region in divergence instead of in the ratio."""

from typing import Literal

import torch

from algorithms.config.schema import Settings, setting
from algorithms.losses.base import LossSettings, Objective, token_log_ratio

# By divergence, those of the authors' script.
THRESHOLDS = {"tv": 0.15, "kl": 0.05}
MAX_RATIO = 20.0  # as a weight


class DppoSettings(Settings):
    """Remove the gradient of a token whose probability has moved too far."""

    divergence: Literal["tv", "kl"] = setting(
        "tv",
        "Divergence over the two outcomes «this token» and «another»: total variation, |π - π_old|, or KL(π_old ‖ π).",
    )
    threshold: float | None = setting(
        None, "How far a token may move, in probability or nats; null: 0.15 for tv, 0.05 for kl.", gt=0
    )


class Dppo(Objective):
    """`M · min(r, 20) · A · log π`, ratio and mask M as constants: the gradient of `M · r · A` below the cap.

    M is 0 for a token that has moved away from `π_old` in the direction of its advantage (`r > 1` with `A > 0`, `r < 1`
    with `A < 0`) by more than `threshold`, else 1. A rare token may multiply its probability, and a likely one that
    PPO's range would let through is stopped. `clip_low` and `clip_high` have no effect.

    The authors measure the divergence from the policy of the inference engine. Here it is from the learner's own at the
    step's start, and `training.importance_cap` corrects between the two. Their variant over the top k tokens is
    left out.

    Source: DPPO (binary TV and binary KL), arXiv 2602.04879; the authors' code in verl.
    """

    section = "dppo"
    settings_class = DppoSettings
    takes_dual_clip = takes_sequence_ratio = False
    settings: DppoSettings

    def token_objective(
        self, ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective, and the tokens that have moved too far."""
        ratio, log_ratio = ratio.detach(), token_log_ratio(ratio, logprobs).detach()
        ahead = ((advantages > 0) & (ratio > 1)) | ((advantages < 0) & (ratio < 1))
        silenced = ahead & (self._divergence(logprobs.detach(), log_ratio) > self._threshold)
        weight = ratio.clamp(max=MAX_RATIO) * ~silenced
        return weight * advantages * logprobs, silenced

    @property
    def _threshold(self) -> float:
        threshold = self.settings.threshold
        return THRESHOLDS[self.settings.divergence] if threshold is None else threshold

    def _divergence(self, logprobs: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
        """Return the divergence of each token's two outcomes, float [N]."""
        new, old = logprobs.exp().clamp(max=1.0), (logprobs - log_ratio).exp().clamp(max=1.0)
        if self.settings.divergence == "tv":
            return (new - old).abs()
        tiny = torch.finfo(new.dtype).tiny
        others = torch.log((1.0 - old).clamp(min=tiny)) - torch.log((1.0 - new).clamp(min=tiny))
        return -old * log_ratio + (1.0 - old) * others
