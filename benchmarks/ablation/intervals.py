"""Means over seeds with their 95 % intervals, by Student's t: seeds are few."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the interval around it; low and high are NaN where there is one value alone.

    Args:
        mean: over the values.
        low: lower end.
        high: upper end.
        count: how many values.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Whether all of the interval is on one side of zero."""
        return self.low > 0 or self.high < 0


def t_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """Return the mean with the interval `mean ± t(n - 1) · s / √n`.

    Args:
        values: one a seed, at least one.

    Raises:
        ValueError: there is no value.
    """
    count = len(values)
    if not count:
        raise ValueError("an interval needs at least one value")
    mean = float(np.mean(values))
    half = half_width(np.asarray(values, float)[:, None])[0]
    return Interval(mean, mean - half, mean + half, count)


def half_width(values: np.ndarray) -> np.ndarray:
    """Return half the width of the interval of each column's mean.

    Args:
        values: [seeds, points].

    Returns:
        [points]; NaN with a single seed.
    """
    count = len(values)
    if count < 2:
        return np.full(values.shape[1], math.nan)
    return np.asarray(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * stats.sem(values, axis=0))


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Interval | None:
    """Return the mean difference to the reference over the seeds that both have.

    Args:
        values: seed → value.
        reference: likewise.

    Returns:
        Its interval; None without a common seed.
    """
    common = sorted(values.keys() & reference.keys())
    return t_interval([values[seed] - reference[seed] for seed in common]) if common else None
