"""The weight of a token: its share of the aggregated loss, and its importance weight."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from algorithms.losses.base import LossSettings, check_flat, over_rows

LossAggregation = Literal["token", "response", "constant"]


def loss_weights(
    lengths: np.ndarray, group_ids: np.ndarray, *, loss_aggregation: LossAggregation, max_response_tokens: int
) -> np.ndarray:
    """Compute the weight of one response token of each row, normalized over all rows of one optimizer step.

    The weights are computed before rows are split into micro-batches and assigned to learners: summing
    `weight * token loss` anywhere, in any order, gives the loss of the whole step.

    Args:
        lengths: integer [B], response tokens of each row.
        group_ids: integer [B], which group each row belongs to.
        loss_aggregation: `token`: every token counts the same (DAPO); `response`: mean over a response's tokens,
            then over its group, then over the groups (Eq. 2); `constant`: token sum divided by rows ×
            `max_response_tokens` (Dr. GRPO).
        max_response_tokens: the length limit of a response; only `constant` reads it.

    Returns:
        float64 [B]. A row without tokens gets 0; it still counts as a member of its group.

    Raises:
        ValueError: shapes differ, a length is negative, or a setting is out of range.

    Source: Eq. 2, arXiv 2601.19620; DAPO, arXiv 2503.14476; Dr. GRPO, arXiv 2503.20783.
    """
    lengths, group_ids = np.asarray(lengths), np.asarray(group_ids)
    if lengths.ndim != 1 or lengths.shape != group_ids.shape:
        raise ValueError(f"lengths and group_ids must be 1-D and alike: {lengths.shape}, {group_ids.shape}")
    if (lengths < 0).any():
        raise ValueError(f"lengths must not be negative, got {lengths.min()}")

    divisors: np.ndarray
    if loss_aggregation == "token":
        divisors = np.full(len(lengths), float(lengths.sum()))
    elif loss_aggregation == "response":
        _, group_of_row, group_sizes = np.unique(group_ids, return_inverse=True, return_counts=True)
        divisors = lengths.astype(np.float64) * group_sizes[group_of_row] * len(group_sizes)
    elif loss_aggregation == "constant":
        if max_response_tokens < 1:
            raise ValueError(f"max_response_tokens must be at least 1, got {max_response_tokens}")
        divisors = np.full(len(lengths), float(len(lengths) * max_response_tokens))
    else:
        raise ValueError(f"loss_aggregation must be token, response or constant, got {loss_aggregation!r}")
    return np.divide(1.0, divisors, out=np.zeros(len(lengths)), where=lengths > 0)


def importance_weights(
    old_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor, *, settings: LossSettings, lengths: Sequence[int]
) -> torch.Tensor:
    """Weigh on-policy tokens by `π_old / π_engine`, bounded.

    Level `token` takes each token's own ratio, `sequence` the product over its response for all its tokens,
    `geometric` their geometric mean, which does not grow with the response's length. Mode
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
        J. Liu et al., "When speed kills stability", 2025 (sequences, means, masking); IcePop, arXiv 2510.18855
        (two bounds).
    """
    check_flat(old_logprobs, sampling_logprobs)
    if settings.importance_cap <= 0:
        raise ValueError(f"importance_cap must be positive, got {settings.importance_cap}")
    log_ratio = (old_logprobs - sampling_logprobs).detach()
    if settings.importance_level == "sequence":
        log_ratio = over_rows(torch.sum, log_ratio, lengths)
    elif settings.importance_level == "geometric":
        log_ratio = over_rows(torch.mean, log_ratio, lengths)
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
