"""95 % intervals of means over problems, and whether a change between two evaluations is more than chance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

import numpy as np

# Below this, resampling the same few differences gives an interval that is far too narrow.
FEWEST_PROBLEMS = 10


class Trend(StrEnum):
    """What the data support about a change."""

    ROSE = "rose"
    FELL = "fell"
    WITHIN_NOISE = "within noise"


@dataclass(frozen=True)
class Change:
    """A mean difference with its 95 % interval.

    Args:
        mean: mean over problems of after minus before.
        low: lower end of the interval.
        high: upper end of the interval.
        problems: how many problems both evaluations have.
    """

    mean: float
    low: float
    high: float
    problems: int

    @property
    def trend(self) -> Trend:
        """Return rose or fell only where the whole interval is on one side of zero."""
        if self.low > 0:
            return Trend.ROSE
        return Trend.FELL if self.high < 0 else Trend.WITHIN_NOISE

    @property
    def is_none(self) -> bool:
        """Whether no problem's value differs: if one did, some resample would too."""
        return self.mean == self.low == self.high == 0


def paired_bootstrap(
    before: Mapping[str, float], after: Mapping[str, float], *, resamples: int = 10_000, seed: int = 0
) -> Change | None:
    """Return the mean difference with its interval, from problems resampled with replacement.

    Args:
        before: uid → share of correct samples, 0 to 1.
        after: the same for the later policy; problems that only one side has are left out.
        resamples: how many bootstrap samples are drawn.
        seed: makes the interval repeatable.

    Returns:
        The change, or None when fewer than ten problems are common.
    """
    common = sorted(before.keys() & after.keys())
    return _change([np.array([after[uid] - before[uid] for uid in common])], resamples, seed)


def stratified_bootstrap(strata: Sequence[np.ndarray]) -> Change | None:
    """Return the mean over strata of their mean differences with its interval; each stratum is resampled by itself.

    Args:
        strata: float [problems] for each, the differences.

    Returns:
        The change, or None when a stratum has fewer than ten problems.
    """
    return _change(strata, 2_000, seed=0)


def _change(strata: Sequence[np.ndarray], resamples: int, seed: int) -> Change | None:
    if min(map(len, strata)) < FEWEST_PROBLEMS:
        return None
    low, high = bootstrap_interval(strata, resamples, seed)
    mean = float(np.mean([values.mean() for values in strata]))
    return Change(mean=mean, low=low, high=high, problems=sum(map(len, strata)))


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value, of a file or a summary, is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def in_points(change: float) -> float:
    """Return a difference of two shares in percentage points, rounded to a tenth.

    However the difference was computed, half a tenth is rounded alike: float64's last digits are dropped first.
    """
    return round(round(100 * change, 9), 1) + 0.0


@dataclass(frozen=True)
class Score:
    """A mean over problems and its 95 % interval; None below ten problems.

    Percentile bootstrap over problems. Where all problems were solved, or none, every resample is the same, and the
    interval would claim to be certain: there it is Wilson's.
    """

    mean: float
    low: float | None
    high: float | None


def score(values: Sequence[float], seed: int = 0, *, share: bool = True) -> Score:
    """Return mean and interval of one number per problem.

    Args:
        values: one for each problem.
        seed: of the resamples.
        share: whether they are shares, from 0 to 1.

    Raises:
        ValueError: there are no problems.
    """
    if not len(values):
        raise ValueError("a score needs at least one problem")
    numbers = np.asarray(values, dtype=np.float64)
    mean = float(numbers.mean())
    if len(numbers) < FEWEST_PROBLEMS:
        return Score(mean, None, None)
    if share and mean in (0.0, 1.0):
        return Score(mean, *share_interval(len(numbers) if mean else 0, len(numbers)))
    return Score(mean, *bootstrap_interval([numbers], seed=seed))


def mean_score(benchmarks: Sequence[Sequence[float]], *, share: bool = True) -> Score:
    """Return the mean over benchmarks of their means; for its interval problems are resampled within each.

    Where every problem of every benchmark was solved, or none, it is the mean of Wilson's, which is wider.

    Args:
        benchmarks: one number per problem for each of them.
        share: whether they are shares, from 0 to 1.
    """
    own = [score(values, share=share) for values in benchmarks]
    mean = sum(one.mean for one in own) / len(own)
    ends = [(one.low, one.high) for one in own if one.low is not None and one.high is not None]
    if len(ends) < len(own):
        return Score(mean, None, None)
    if share and all(one.mean in (0.0, 1.0) for one in own):
        low, high = (sum(end) / len(own) for end in zip(*ends, strict=True))
        return Score(mean, low, high)
    return Score(mean, *bootstrap_interval([np.asarray(one, np.float64) for one in benchmarks]))


def area_under_curve(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the chance that a positive has a higher score than a negative, ties as a half; 0.5 without one of both.

    Args:
        scores: float [n].
        positive: bool [n].
    """
    scores, positive = np.asarray(scores, np.float64), np.asarray(positive, bool)
    ones, others = scores[positive], np.sort(scores[~positive])
    if not len(ones) or not len(others):
        return 0.5
    below = np.searchsorted(others, ones, side="left") + np.searchsorted(others, ones, side="right")
    return float(below.mean() / (2 * len(others)))


def bootstrap_interval(strata: Sequence[np.ndarray], resamples: int = 2_000, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean over strata of their means.

    Args:
        strata: float [problems] for each; each is resampled within itself.
        resamples: how many bootstrap samples are drawn.
        seed: makes the interval repeatable.
    """
    from scipy import stats  # takes a second to import

    found = stats.bootstrap(
        strata,
        lambda *samples, axis: np.mean([sample.mean(axis=axis) for sample in samples], axis=0),
        n_resamples=resamples,
        # Batches bound the memory of a large benchmark. With several strata they would change the order of the draws.
        batch=500 if len(strata) == 1 else None,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def share_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share: unlike a bootstrap's it has a width where all or none succeeded."""
    from scipy import stats

    found = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
