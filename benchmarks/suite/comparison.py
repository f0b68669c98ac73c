"""A reference arm against every other one: differences, p-values, and how likely its run is the better one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.suite.statistics import (
    DRAWS,
    MARGIN,
    Estimate,
    base_weights,
    equivalent,
    holm,
    interquartile_mean,
    interval,
    two_sided_p,
    widen,
)


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
        """The verdict on the reference arm: a difference at 5 %, Holm-adjusted, or else equivalence."""
        same = equivalent(self.iqm_90)
        if self.p_holm < 0.05:
            return ("ahead" if self.iqm.value > 0 else "behind") + (f", by less than {MARGIN}" if same else "")
        return f"equivalent within {MARGIN}" if same else "indistinguishable"


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
