"""Importance weights of on-policy tokens: what corrects for the engine's log-probs."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from algorithms.learner.loss import LossSettings, check_flat, over_rows


def importance_weights(
    old_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor, *, settings: LossSettings, lengths: Sequence[int]
) -> torch.Tensor:
    """Weigh on-policy tokens by `π_old / π_engine`, bounded.

    Level `token` takes each token's own ratio, `sequence` the product over its response for all its tokens. Mode
    `truncate` sets a ratio above the cap to the cap; `mask` sets one above the cap, or below the floor, to 0.

    Args:
        old_logprobs: float [N], under the policy at the step's start, response after response.
        sampling_logprobs: float [N], from the engine. Replayed rows take no such weight: see the caller.
        settings: `importance_cap` (positive), `importance_level`, `importance_mode`, `importance_floor`.
        lengths: tokens of each response, in order; they add up to N.

    Returns:
        float [N], detached.

    Raises:
        ValueError: the cap is not positive, or the tensors do not share one 1-D shape.

    Source: F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025 (truncation);
        J. Liu et al., "When speed kills stability", 2025 (sequences, masking); IcePop, arXiv 2510.18855 (two bounds).
    """
    check_flat(old_logprobs, sampling_logprobs)
    if settings.importance_cap <= 0:
        raise ValueError(f"importance_cap must be positive, got {settings.importance_cap}")
    log_ratio = (old_logprobs - sampling_logprobs).detach()
    if settings.importance_level == "sequence":
        log_ratio = over_rows(torch.sum, log_ratio, lengths)
    ratio = log_ratio.exp()
    if settings.importance_mode == "truncate":
        return ratio.clamp(max=settings.importance_cap)
    inside = (ratio >= settings.importance_floor) & (ratio <= settings.importance_cap)
    return torch.where(inside, ratio, torch.zeros_like(ratio))


def bounded_tokens(
    old_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor, *, settings: LossSettings, lengths: Sequence[int]
) -> int:
    """Count the tokens whose importance weight a bound has changed; arguments as of `importance_weights`."""
    weights = importance_weights(old_logprobs, sampling_logprobs, settings=settings, lengths=lengths)
    free = replace(settings, importance_cap=math.inf, importance_mode="truncate")
    unbounded = importance_weights(old_logprobs, sampling_logprobs, settings=free, lengths=lengths)
    return int((weights != unbounded).sum())
