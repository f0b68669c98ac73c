"""Compute equal responses once: short answers repeat within a group, and a long prompt makes no difference."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from algorithms.learner.batch import TrainingSample

# Log-probs of the engine that differ by rounding are those of the same policy; others are not.
SAME_POLICY = 1e-4


def merge_equal_rows(rows: Sequence[TrainingSample]) -> tuple[list[TrainingSample], list[int]]:
    """Join rows that are equal except for the weight into one with the sum of their weights.

    The loss is linear in the weights, so that its value and gradient stay the same up to rounding. Rows without a
    response token stay as they are.

    Args:
        rows: of one optimizer step, or to be scored.

    Returns:
        The distinct rows in order of first appearance, and for each given row the index of its own among them.
    """
    places: dict[object, int] = {}
    merged: list[list[TrainingSample]] = []
    owners = []
    for row in rows:
        place = places.setdefault(_identity(row), len(merged))
        if place == len(merged):
            merged.append([])
        merged[place].append(row)
        owners.append(place)
    return [_join(same) for same in merged], owners


def _identity(row: TrainingSample) -> object:
    """Return what rows must share."""
    sampled, carried = row.sampling_logprobs, (row.terms, row.inputs)
    return (
        row.tokens.tobytes(),
        row.loss_mask.tobytes(),
        np.asarray(row.advantages, np.float32).tobytes(),
        None if row.old_logprobs is None else row.old_logprobs.tobytes(),
        # A lagging engine may have sampled the same tokens with two policies.
        None if sampled is None else np.rint(np.asarray(sampled) / SAME_POLICY).tobytes(),
        row.weight > 0,
        *(frozenset((name, np.asarray(own, np.float32).tobytes()) for name, own in each.items()) for each in carried),
    )


def _join(rows: Sequence[TrainingSample]) -> TrainingSample:
    if len(rows) == 1:
        return rows[0]
    return replace(rows[0], weight=sum(row.weight for row in rows), multiplicity=sum(row.multiplicity for row in rows))
