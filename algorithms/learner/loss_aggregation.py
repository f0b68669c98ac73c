"""How token losses are aggregated into the loss of a step: `training.loss_aggregation`."""

from typing import Literal

import numpy as np

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
