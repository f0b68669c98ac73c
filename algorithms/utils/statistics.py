"""Is a change between two evaluations of the same problems more than chance?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

# Below this, resampling the same few differences gives an interval that is far too narrow.
FEWEST_PROBLEMS = 10


class Trend(StrEnum):
    """What the data allow to say about a change."""

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
        """Risen or fallen only where the whole interval is on one side of zero."""
        if self.low > 0:
            return Trend.ROSE
        return Trend.FELL if self.high < 0 else Trend.WITHIN_NOISE

    @property
    def is_none(self) -> bool:
        """Whether no problem's value differs: with one that did, some resample would."""
        return self.mean == self.low == self.high == 0


def paired_bootstrap(
    before: Mapping[str, float], after: Mapping[str, float], *, resamples: int = 10_000, seed: int = 0
) -> Change | None:
    """Resample problems with replacement and look at the mean difference (percentile bootstrap, 95 %).

    Args:
        before: uid → share of correct samples, 0 to 1.
        after: the same for the later policy; problems that only one side has are left out.
        resamples: how many bootstrap samples are drawn.
        seed: makes the interval repeatable.

    Returns:
        The change, or None when fewer than ten problems are common.
    """
    common = sorted(before.keys() & after.keys())
    if len(common) < FEWEST_PROBLEMS:
        return None
    differences = np.array([after[uid] - before[uid] for uid in common])
    generator = np.random.default_rng(seed)
    means = np.array([differences[generator.integers(len(common), size=len(common))].mean() for _ in range(resamples)])
    low, high = np.percentile(means, [2.5, 97.5])
    return Change(mean=float(differences.mean()), low=float(low), high=float(high), problems=len(common))


def stratified_bootstrap(strata: Sequence[np.ndarray]) -> Change | None:
    """The mean over strata of their mean differences (percentile bootstrap, 95 %); see `stratified_means`.

    Args:
        strata: float [problems] for each, the differences.

    Returns:
        The change, or None when a stratum has fewer than ten problems.
    """
    if min(map(len, strata)) < FEWEST_PROBLEMS:
        return None
    low, high = np.percentile(stratified_means(strata), [2.5, 97.5])
    mean = float(np.mean([values.mean() for values in strata]))
    return Change(mean=mean, low=float(low), high=float(high), problems=sum(map(len, strata)))


def stratified_means(strata: Sequence[np.ndarray], resamples: int = 2_000, seed: int = 0) -> np.ndarray:
    """Resample each stratum within itself; float [resamples], the means over strata of their means.

    Args:
        strata: float [problems] for each.
        resamples: how many bootstrap samples are drawn.
        seed: makes the result repeatable.
    """
    generator = np.random.default_rng(seed)
    means = [
        [values[generator.integers(len(values), size=len(values))].mean() for _ in range(resamples)]
        for values in strata
    ]
    return np.mean(means, axis=0)
