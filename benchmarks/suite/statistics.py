"""Aggregates over tasks, with intervals from a paired bootstrap that is stratified by task and clustered by base.

The tasks are fixed, the bases of a task are a sample: an interval says what other bases and seeds of the same tasks
might have given. Runs are rows of equally long arrays. Weights say how often a bootstrap draw counts a run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special

DRAWS = 10_000
MARGIN = 0.02


class Estimate(NamedTuple):
    """A statistic of the runs with the ends of its interval."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the mean of the middle half of all scores, a quarter of their weight trimmed from either end.

    As in rliable (arXiv 2108.13264), over the pooled runs of all tasks. A run on the edge of the middle half counts
    with the part that lies inside: of 6 runs the second and the fifth count half. Where the runs are no multiple of
    four, SciPy's `trim_mean`, which rliable calls, drops whole runs only and trims less.

    Args:
        scores: [runs], at least one.
        weights: [runs] or [draws, runs], not negative, with a positive sum; 1 each by default.

    Returns:
        A scalar array, or [draws].
    """
    order = np.argsort(scores)
    ranked = np.asarray(scores, float)[order]
    weights = np.ones(len(ranked)) if weights is None else weights[..., order]
    reached = np.cumsum(weights, axis=-1)
    total = reached[..., -1:]
    kept = np.diff(np.clip(reached, 0.25 * total, 0.75 * total), axis=-1, prepend=0.25 * total)
    return kept @ ranked / (0.5 * total[..., 0])


def stratified_mean(values: np.ndarray, strata: Sequence[str], weights: np.ndarray | None = None) -> np.ndarray:
    """Return the mean over strata of each stratum's mean, so that every stratum weighs the same.

    Args:
        values: [runs] or [runs, points].
        strata: [runs].
        weights: [draws, runs]; by default every run counts once and the result has no draws.

    Returns:
        [draws] or [draws, points]; without weights a scalar array or [points].
    """
    names = np.asarray(strata)
    rows = np.ones((1, len(names))) if weights is None else weights
    shares = np.zeros(rows.shape)
    members = [names == name for name in np.unique(names)]
    for member in members:
        shares[:, member] = rows[:, member] / rows[:, member].sum(axis=1, keepdims=True) / len(members)
    means = shares @ np.asarray(values, float)
    return means[0] if weights is None else means


def base_weights(strata: Sequence[str], bases: Sequence[str], draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Resample bases with replacement within each stratum; all runs of a base, of whatever arm, are drawn together.

    Of n bases a draw takes n − 1, and each counts n / (n − 1) times (Rao, Wu and Yue 1992). Taking n would understate
    the variance by the factor (n − 1) / n, which is half with two bases. The result depends on the labels and not on
    the order of the runs.

    Args:
        strata: [runs], the stratum of each run: what is not resampled.
        bases: [runs], the base of each run; equal labels in two strata are two bases.
        draws: how many.
        seed: of the generator.

    Returns:
        [draws, runs].

    Raises:
        ValueError: a stratum has a single base, which tells nothing of the spread between bases.
    """
    names, labels = np.asarray(strata), np.asarray(bases)
    rng = np.random.default_rng(seed)
    weights = np.empty((draws, len(names)))
    for name in np.unique(names):
        member = names == name
        found, which = np.unique(labels[member], return_inverse=True)
        count = len(found)
        if count < 2:
            raise ValueError(f"{name} has a single base, {found[0]}: an interval needs at least two in every stratum")
        drawn = rng.multinomial(count - 1, np.full(count, 1 / count), size=draws) * (count / (count - 1))
        weights[:, member] = drawn[:, which]
    return weights


def widen(value: float, draws: np.ndarray, freedom: float) -> np.ndarray:
    """Stretch the draws' deviations from the value, from a normal distribution's quantiles to Student's t.

    A bootstrap takes the spread that it found for the true one, which few bases do not give. Of the degrees of freedom,
    bases minus strata, an interquartile mean has about half: its middle half of the runs. With that, 95 % intervals of
    differences cover 94 to 95 % of simulated ones from 8 strata of two bases on, against 86 to 93 % without.

    Args:
        value: the statistic of the runs as they are.
        draws: [draws], the statistic of each bootstrap draw.
        freedom: degrees of freedom, positive.

    Returns:
        [draws].
    """
    ranks = np.empty(len(draws))
    ranks[np.argsort(draws, kind="stable")] = np.arange(len(draws))
    # The two tails mirror each other; the median itself would be 0 / 0, and deviates by nothing worth stretching.
    tail = np.minimum(np.minimum(ranks, len(draws) - 1 - ranks) + 0.5, len(draws) / 2 - 0.5) / len(draws)
    return value + (draws - value) * special.stdtrit(freedom, tail) / special.ndtri(tail)


def interval(value: float, draws: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Return the value with its percentile interval.

    Args:
        value: the statistic of the runs as they are.
        draws: [draws], the statistic of each bootstrap draw.
        confidence: part of the draws within the interval.
    """
    low, high = (float(np.quantile(draws, share)) for share in ((1 - confidence) / 2, (1 + confidence) / 2))
    return Estimate(float(value), low, high)


def two_sided_p(draws: np.ndarray) -> float:
    """Return the p-value of "the difference is zero": twice the smaller tail of the draws beyond zero.

    It inverts the percentile interval. The observed runs count as one more draw on that side, so it is never zero.

    Args:
        draws: [draws], the difference of each bootstrap draw.
    """
    tail = min(int(np.sum(draws <= 0)), int(np.sum(draws >= 0)))
    return min(1.0, 2 * (tail + 1) / (len(draws) + 1))


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Adjust p-values for their number by Holm's step-down method; at most 1, in the order given.

    Args:
        p_values: [tests].

    Returns:
        [tests]; rejecting those at most α keeps the chance of any false rejection at most α.
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return adjusted


def equivalent(difference: Estimate, margin: float = MARGIN) -> bool:
    """Tell whether two one-sided tests at 5 % place the difference within the margin on both sides.

    Args:
        difference: with its 90 % interval, not the 95 % one.
        margin: largest difference that counts as none.
    """
    return -margin < difference.low and difference.high < margin


def performance_profile(scores: np.ndarray, thresholds: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the share of runs whose score is above each threshold.

    Args:
        scores: [runs].
        thresholds: [points].
        weights: [draws, runs]; by default every run counts once and the result has no draws.

    Returns:
        [points], or [draws, points] with weights.
    """
    above = np.asarray(scores)[:, None] > np.asarray(thresholds)
    return above.mean(axis=0) if weights is None else weights @ above / weights.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Side:
    """The runs of one arm.

    Args:
        scores: [runs].
        cells: [runs], within which runs are paired.
        weights: [draws, runs].
    """

    scores: np.ndarray
    cells: np.ndarray
    weights: np.ndarray


def probability_of_improvement(first: Side, second: Side) -> tuple[float, np.ndarray]:
    """Return the mean over cells of P(X > Y) + ½ P(X = Y), X and Y random runs of the first and the second arm.

    The draws resample placements, the part of the other arm's runs that a run is above (DeLong's linear form).
    Reweighting the pairs themselves would only ever pair runs of one base where a cell has two.

    Args:
        first: the arm that may be better.
        second: the other one, with runs in the same cells and weights of the same draws.

    Returns:
        The probability, and [draws] of it.
    """
    values, draws = [], np.zeros(len(first.weights))
    for name in np.unique(first.cells):
        ours, theirs = first.cells == name, second.cells == name
        x, y = first.scores[ours][:, None], second.scores[theirs]
        above = np.where(x == y, 0.5, x > y)
        value = above.mean()
        values.append(value)
        draws += value
        for weights, placements in (
            (first.weights[:, ours], above.mean(axis=1)),
            (second.weights[:, theirs], above.mean(axis=0)),
        ):
            # Over the number of runs: a draw may have no run of a cell whose stratum has further bases.
            draws += weights @ (placements - value) / len(placements)
    return float(np.mean(values)), np.clip(draws / len(values), 0, 1)


@dataclass(frozen=True)
class Difference:
    """The reference arm minus another one.

    Args:
        iqm: difference of the interquartile means, with its 95 % interval.
        iqm_90: with its 90 % interval.
        p: two-sided bootstrap p-value of that difference.
        p_holm: adjusted for the number of other arms.
        improvement: probability that a run of the reference beats one of the other arm, with its 95 % interval.
    """

    iqm: Estimate
    iqm_90: Estimate
    p: float
    p_holm: float
    improvement: Estimate

    @property
    def verdict(self) -> str:
        """What the reference arm is, in words: at 5 %, Holm-adjusted, and equivalence for what is not different."""
        same = equivalent(self.iqm_90)
        if self.p_holm < 0.05:
            return ("ahead" if self.iqm.value > 0 else "behind") + (f", by less than {MARGIN}" if same else "")
        return f"equivalent within {MARGIN}" if same else "not told apart"


@dataclass(frozen=True)
class Comparison:
    """All arms on one score.

    Args:
        levels: arm → interquartile mean with its 95 % interval.
        differences: each other arm → the reference minus it.
    """

    levels: Mapping[str, Estimate]
    differences: Mapping[str, Difference]


def compare(
    scores: Sequence[float] | np.ndarray,
    arms: Sequence[str],
    strata: Sequence[str],
    bases: Sequence[str],
    reference: str,
    *,
    cells: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare a reference arm with every other one; all arms share the draws of bases.

    Args:
        scores: [runs].
        arms: [runs].
        strata: [runs], within which bases are resampled.
        bases: [runs].
        reference: the arm that the others are compared with.
        cells: [runs], a finer division within which the probability of improvement pairs runs; the strata by default.
        draws: bootstrap draws.
        seed: of their generator.

    Raises:
        ValueError: no run of the reference; another arm does not have as many runs of each base; or a stratum with a
            single base.
    """
    values, names = np.asarray(scores, float), np.asarray(arms)
    cells = strata if cells is None else cells
    _check_pairs(arms, cells, bases, reference)
    weights = base_weights(strata, bases, draws, seed)
    freedom = (len(set(zip(strata, bases, strict=True))) - len(set(strata))) / 2
    within = np.asarray(cells)
    sides = {
        arm: Side(values[names == arm], within[names == arm], weights[:, names == arm]) for arm in dict.fromkeys(arms)
    }
    points = {arm: float(interquartile_mean(side.scores)) for arm, side in sides.items()}
    drawn = {arm: interquartile_mean(side.scores, side.weights) for arm, side in sides.items()}
    others = [arm for arm in sides if arm != reference]
    gaps = {arm: widen(points[reference] - points[arm], drawn[reference] - drawn[arm], freedom) for arm in others}
    p_values = [two_sided_p(gaps[arm]) for arm in others]
    differences = {}
    for arm, p, p_holm in zip(others, p_values, holm(p_values), strict=True):
        gap = points[reference] - points[arm]
        improvement = interval(*probability_of_improvement(sides[reference], sides[arm]))
        differences[arm] = Difference(
            interval(gap, gaps[arm]), interval(gap, gaps[arm], 0.9), p, float(p_holm), improvement
        )
    levels = {arm: interval(points[arm], widen(points[arm], drawn[arm], freedom)) for arm in sides}
    return Comparison(levels, differences)


def _check_pairs(arms: Sequence[str], cells: Sequence[str], bases: Sequence[str], reference: str) -> None:
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for arm, *place in zip(arms, cells, bases, strict=True):
        counts.setdefault(arm, Counter())[place[0], place[1]] += 1
    if reference not in counts:
        raise ValueError(f"no run of the reference arm {reference}")
    expected = counts[reference]
    for arm, found in counts.items():
        for cell, base in sorted(expected.keys() | found.keys()):
            ours, theirs = expected[cell, base], found[cell, base]
            if ours != theirs:
                raise ValueError(
                    f"{cell}, base {base}: {theirs} runs of {arm} and {ours} of {reference}; "
                    "arms are compared over the same bases with as many runs each"
                )
