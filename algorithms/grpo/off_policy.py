"""Correction of on-policy tokens for an inference engine whose policy is not quite the trainer's."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from algorithms.grpo.loss import LossSettings, check_flat, over_rows


def importance_weights(
    trainer_logprobs: torch.Tensor, engine_logprobs: torch.Tensor, *, settings: LossSettings, lengths: Sequence[int]
) -> torch.Tensor:
    """Weigh on-policy tokens by `π_trainer / π_engine`, bounded.

    Level `token` takes each token's own ratio, `sequence` the product over its response for all its tokens. Mode
    `truncate` sets a ratio above the cap to the cap; `mask` sets one above the cap, or below the floor, to 0.

    Args:
        trainer_logprobs: float [N], the trainer's before the step, response after response.
        engine_logprobs: float [N], the engine's. Replayed rows take no such weight: see the caller.
        settings: `is_cap` (positive), `is_level`, `is_mode`, `is_floor`.
        lengths: tokens of each response, in order; they add up to N.

    Returns:
        float [N], detached.

    Raises:
        ValueError: the cap is not positive, or the tensors do not share one 1-D shape.

    Source: F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025 (truncation);
        J. Liu et al., "When speed kills stability", 2025 (sequences, masking); IcePop, arXiv 2510.18855 (two bounds).
    """
    check_flat(trainer_logprobs, engine_logprobs)
    if settings.is_cap <= 0:
        raise ValueError(f"is_cap must be positive, got {settings.is_cap}")
    log_ratio = (trainer_logprobs - engine_logprobs).detach()
    if settings.is_level == "sequence":
        log_ratio = over_rows(torch.sum, log_ratio, lengths)
    ratio = log_ratio.exp()
    if settings.is_mode == "truncate":
        return ratio.clamp(max=settings.is_cap)
    inside = (ratio >= settings.is_floor) & (ratio <= settings.is_cap)
    return torch.where(inside, ratio, torch.zeros_like(ratio))


def bounded_tokens(
    trainer_logprobs: torch.Tensor, engine_logprobs: torch.Tensor, *, settings: LossSettings, lengths: Sequence[int]
) -> int:
    """Count the tokens whose importance weight a bound has changed; arguments as of `importance_weights`."""
    weights = importance_weights(trainer_logprobs, engine_logprobs, settings=settings, lengths=lengths)
    free = replace(settings, is_cap=math.inf, is_mode="truncate")
    unbounded = importance_weights(trainer_logprobs, engine_logprobs, settings=free, lengths=lengths)
    return int((weights != unbounded).sum())
