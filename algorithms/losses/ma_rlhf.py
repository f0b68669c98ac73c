"""MA-RLHF's objective: the ratio of a macro action, the tokens of an n-gram taken as one action."""

from collections.abc import Sequence

import torch

from algorithms.config.schema import Settings, setting
from algorithms.losses.base import MAX_LOG_RATIO, LossSettings, Objective, over_rows, token_log_ratio


class MaRlhfSettings(Settings):
    """Compare policies by macro actions instead of tokens."""

    tokens: int = setting(5, "Tokens of a macro action (n); the last one of a response may have fewer.", ge=1)


class MaRlhf(Objective):
    """`min(r·A, clip(r)·A)` for each macro action, with `r` the product of its tokens' ratios.

    Each of its n tokens has the n-th part of the objective, so that at ratios of 1 the gradient is GRPO's: what changes
    is how far a macro action may move before the clip silences all of its tokens. Macro actions run through a
    response's tokens, over the ends of turns. Where advantages differ within one, each token is clipped by its own.

    Source: MA-RLHF, arXiv 2410.02743; the authors' code for n-grams of 5. There a critic's values and rewards are
    averaged over macro actions, and each token keeps a ratio of its own; without a critic, and with one reward per
    response, the ratio alone is left for macro actions, and its product is ours. So is what is left out: n-grams of
    random length, parse trees and perplexity as ends of macro actions.
    """

    section = "ma_rlhf"
    settings_class = MaRlhfSettings
    takes_dual_clip = takes_sequence_ratio = False
    settings: MaRlhfSettings

    def response_objective(
        self,
        ratio: torch.Tensor,
        logprobs: torch.Tensor,
        advantages: torch.Tensor,
        settings: LossSettings,
        lengths: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each token's part of the objective, and the tokens of the macro actions that are clipped."""
        size = self.settings.tokens
        sizes = [min(size, length - start) for length in lengths for start in range(0, length, size)]
        log_ratio = over_rows(torch.sum, token_log_ratio(ratio, logprobs), sizes)
        shared = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
        unclipped = shared * advantages
        clipped = shared.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high) * advantages
        parts = over_rows(torch.sum, torch.ones_like(ratio), sizes)
        return torch.minimum(unclipped, clipped) / parts, clipped < unclipped
