"""Every statistic against another way to compute it, or against a truth that was simulated."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.suite.comparison import Side, compare, probability_of_improvement
from benchmarks.suite.statistics import (
    Estimate,
    base_weights,
    equivalent,
    holm,
    interquartile_mean,
    interval,
    paired_mean,
    performance_profile,
    stratified_mean,
    two_sided_p,
    widen,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def simulated(generator, gains, *, strata=16, bases=2, seeds=1, between=0.05, noise=0.06):
    """Scores, arms, strata and bases; all arms of a base share its deviation."""
    rows = []
    for stratum, base in itertools.product(range(strata), range(bases)):
        shared = 0.1 + 0.7 * stratum / strata + generator.normal(0, between)
        for (arm, gain), _ in itertools.product(gains.items(), range(seeds)):
            rows.append((shared + gain + generator.normal(0, noise), arm, f"task-{stratum}", f"{base}"))
    scores, *labels = zip(*rows, strict=True)
    return np.array(scores), *map(list, labels)


def width(estimate):
    return estimate.high - estimate.low


# The interquartile mean


def test_the_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([9.0, 1, 2, 3])) == 2.5
    # A quarter of 6 runs is 1.5: the second and the fifth count half.
    assert interquartile_mean(np.array([0, 1, 2, 3, 5, 100])) == pytest.approx((0.5 * 1 + 2 + 3 + 0.5 * 5) / 3)
    assert interquartile_mean(np.array([7.0])) == 7


@pytest.mark.parametrize("count", [4, 8, 100])
def test_it_is_scipys_trimmed_mean_where_whole_runs_are_trimmed(count):
    scores = rng().normal(size=count)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 50])
def test_it_is_scipys_trimmed_mean_of_every_run_four_times(count):
    scores = rng().normal(size=count)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(np.repeat(scores, 4), 0.25))


def test_a_weight_of_two_is_the_run_twice():
    scores, weights = rng().normal(size=9), rng(1).integers(0, 4, (20, 9)).astype(float)
    expected = [interquartile_mean(np.repeat(scores, row.astype(int))) for row in weights]
    assert interquartile_mean(scores, weights) == pytest.approx(np.array(expected))
    assert interquartile_mean(scores, 1.5 * weights) == pytest.approx(np.array(expected))


def test_one_run_gone_wild_moves_it_little():
    scores = rng().normal(size=40)
    wild = np.where(np.arange(40) == 3, 1e6, scores)
    assert abs(interquartile_mean(wild) - interquartile_mean(scores)) < 0.2


# Means and profiles


def test_every_stratum_weighs_the_same_in_a_stratified_mean():
    values, strata = np.array([1.0, 1, 1, 5]), ["a", "a", "a", "b"]
    assert stratified_mean(values, strata) == 3
    assert stratified_mean(values[:, None] * [1, 2], strata).tolist() == [3, 6]
    weights = np.array([[2.0, 0, 0, 1], [1, 1, 1, 3]])
    assert stratified_mean(np.array([3.0, 1, 1, 5]), strata, weights) == pytest.approx([4, (5 / 3 + 5) / 2])


def test_a_profile_is_the_share_above_each_threshold():
    scores = np.array([0.1, 0.2, 0.2, 0.9])
    assert performance_profile(scores, np.array([0, 0.1, 0.2, 0.5, 1])).tolist() == [1, 0.75, 0.25, 0.25, 0]
    weights = np.array([[0.0, 2, 1, 1]])
    assert performance_profile(scores, np.array([0, 0.2]), weights).tolist() == [[1, 0.25]]


# The bootstrap


def test_a_draw_takes_one_base_less_and_scales_it_up():
    strata, bases = list("aaaaabbb"), list("00112") + list("012")
    weights = base_weights(strata, bases, draws=4000)
    for stratum in "ab":
        members = [index for index, name in enumerate(strata) if name == stratum]
        by_base = {bases[index]: weights[:, index] for index in members}
        assert all(np.array_equal(weights[:, index], by_base[bases[index]]) for index in members)
        assert np.allclose(sum(by_base.values()), 3)
        assert all(np.isin(column, [0, 1.5, 3]).all() for column in by_base.values())
        # Mean 1; the variance that makes the variance of a mean the unbiased s² / n.
        assert [column.mean() for column in by_base.values()] == pytest.approx([1, 1, 1], abs=0.06)
        assert [column.var() for column in by_base.values()] == pytest.approx([1, 1, 1], abs=0.06)
    # One stratum's draws say nothing of the other's.
    assert abs(np.corrcoef(weights[:, 0], weights[:, 5])[0, 1]) < 0.05


@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_variance_of_a_mean_is_the_unbiased_one(count):
    scores = rng(count).normal(size=count)
    weights = base_weights(["a"] * count, [f"{base}" for base in range(count)], draws=20_000)
    assert (weights @ scores / count).std() == pytest.approx(stats.sem(scores), rel=0.03)


def test_a_single_base_has_no_spread():
    with pytest.raises(ValueError, match="b has a single base, 0"):
        base_weights(list("aab"), list("010"))


def test_the_same_seed_gives_the_same_draws_in_whatever_order_runs_come():
    strata, bases = list("aaabbb"), list("012012")
    order = [3, 0, 5, 2, 1, 4]
    first = base_weights(strata, bases, draws=50, seed=3)
    second = base_weights([strata[i] for i in order], [bases[i] for i in order], draws=50, seed=3)
    assert np.array_equal(first[:, order], second)
    assert not np.array_equal(first, base_weights(strata, bases, draws=50, seed=4))


def test_intervals_are_those_of_a_plain_loop_over_the_same_draws():
    scores, arms, strata, bases = simulated(rng(5), {"r3": 0.1, "grpo": 0}, strata=4, bases=3, seeds=2)
    weights = base_weights(strata, bases, draws=80, seed=9)
    drawn = {"r3": [], "grpo": []}
    for draw in range(80):
        for arm, values in drawn.items():
            repeated = []
            for run in range(len(scores)):
                if arms[run] == arm:
                    # Three bases: a weight is a number of times 1.5; four times it, and SciPy trims whole runs.
                    repeated += [scores[run]] * (4 * round(weights[draw, run] / 1.5))
            values.append(stats.trim_mean(repeated, 0.25))
    found = compare(scores, arms, strata, bases, "r3", draws=80, seed=9)
    freedom = 4 * (3 - 1) / 2
    points = {arm: stats.trim_mean(np.repeat(scores[np.array(arms) == arm], 4), 0.25) for arm in drawn}
    for arm, values in drawn.items():
        ends = np.percentile(widened_in_a_loop(points[arm], values, freedom), [2.5, 97.5])
        assert found.levels[arm] == pytest.approx((points[arm], *ends))
    gap = points["r3"] - points["grpo"]
    gaps = widened_in_a_loop(gap, [ours - theirs for ours, theirs in zip(*drawn.values(), strict=True)], freedom)
    difference = found.differences["grpo"]
    assert difference.iqm == pytest.approx((gap, *np.percentile(gaps, [2.5, 97.5])))
    assert difference.iqm_90 == pytest.approx((gap, *np.percentile(gaps, [5, 95])))
    assert difference.p == pytest.approx(2 * (1 + min(sum(g <= 0 for g in gaps), sum(g >= 0 for g in gaps))) / 81)


def widened_in_a_loop(value, draws, freedom):
    order = sorted(range(len(draws)), key=lambda index: draws[index])
    widened = [0.0] * len(draws)
    for rank, index in enumerate(order):
        part = (rank + 0.5) / len(draws)
        widened[index] = value + (draws[index] - value) * stats.t.ppf(part, freedom) / stats.norm.ppf(part)
    return widened


def test_normal_draws_are_widened_to_students_t():
    draws = 2 + 3 * stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    low, high = np.quantile(widen(2, draws, 5), [0.025, 0.975])
    half = 3 * stats.t.ppf(0.975, 5)
    assert (low, high) == pytest.approx((2 - half, 2 + half), rel=0.01)
    assert widen(2, draws, 1e9) == pytest.approx(draws, abs=1e-6)
    assert np.isfinite(widen(2, draws[:999], 5)).all()
    assert widen(0, np.zeros(101), 3).tolist() == [0] * 101


def test_a_paired_mean_is_scipys_t_interval():
    differences = np.random.default_rng(0).normal(0.1, 1, 7)
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert paired_mean(differences) == pytest.approx((differences.mean(), expected.low, expected.high))
    assert paired_mean([0.3]) == (0.3, -np.inf, np.inf)


def test_an_interval_is_between_percentiles():
    assert interval(50, np.arange(101.0), 0.9) == pytest.approx((50, 5, 95))
    assert interval(50, np.arange(101.0)) == pytest.approx((50, 2.5, 97.5))


@pytest.mark.parametrize(("strata", "bases"), [(16, 2), (8, 3)])
def test_intervals_cover_the_truth_as_often_as_they_say(strata, bases):
    generator, suites = rng(11), 60
    covered = rejected = improvement = 0
    for number in range(suites):
        runs = simulated(generator, {"r3": 0.0, "grpo": 0}, strata=strata, bases=bases)
        difference = compare(*runs, "r3", draws=300, seed=number).differences["grpo"]
        covered += difference.iqm.low <= 0 <= difference.iqm.high
        improvement += difference.improvement.low <= 0.5 <= difference.improvement.high
        rejected += difference.p < 0.05
    # Two standard errors of 0.95 with 60 suites are 0.056; drawing all n bases of n covers 0.78 and 0.84.
    assert covered / suites == pytest.approx(0.95, abs=0.056)
    assert rejected / suites == pytest.approx(0.05, abs=0.056)
    assert improvement / suites >= 0.9


def test_an_interval_is_wider_where_runs_of_a_base_are_alike():
    """Three seeds of a base that all give the same are one observation, not three."""
    scores, arms, strata, bases = simulated(rng(2), {"r3": 0.0}, bases=3, seeds=3, between=0.1, noise=0.0)
    own = [f"{base}-{run % 3}" for run, base in enumerate(bases)]
    clustered = compare(scores, arms, strata, bases, "r3", draws=1000).levels["r3"]
    apart = compare(scores, arms, strata, own, "r3", draws=1000).levels["r3"]
    assert clustered.value == apart.value
    # Σ (x - mean)² / 8 over nine runs that are three alike is three quarters of the variance of bases: s² / 3 against
    # ¾ s² / 9 is a factor of 2 in the standard deviation.
    assert width(clustered) / width(apart) == pytest.approx(2, rel=0.2)


def test_what_all_arms_of_a_base_share_drops_out_of_a_difference():
    runs = simulated(rng(3), {"r3": 0.0, "grpo": 0.0}, strata=8, bases=3, between=0.1, noise=0.005)
    found = compare(*runs, "r3", draws=1000)
    assert width(found.differences["grpo"].iqm) < 0.4 * width(found.levels["r3"])


def test_the_order_of_runs_and_the_names_of_arms_change_nothing():
    scores, arms, strata, bases = simulated(rng(4), {"r3": 0.05, "grpo": 0.0, "dapo": 0.02}, strata=5, bases=3)
    order = rng(6).permutation(len(scores))
    moved = [[labels[index] for index in order] for labels in (arms, strata, bases)]
    first, second = (
        compare(*runs, "r3", draws=200) for runs in ((scores, arms, strata, bases), (scores[order], *moved))
    )
    for arm in first.levels:
        assert first.levels[arm] == pytest.approx(second.levels[arm])
    for arm, difference in first.differences.items():
        assert difference.iqm == pytest.approx(second.differences[arm].iqm)
        assert difference.improvement == pytest.approx(second.differences[arm].improvement)
        assert (difference.p, difference.p_holm) == (second.differences[arm].p, second.differences[arm].p_holm)
    swapped = [{"r3": "grpo", "grpo": "r3"}.get(arm, arm) for arm in arms]
    assert compare(scores, swapped, strata, bases, "r3", draws=200).levels["grpo"] == first.levels["r3"]


def test_swapping_two_arms_turns_their_difference_round():
    runs = simulated(rng(8), {"r3": 0.03, "grpo": 0.0}, strata=6, bases=3)
    there, back = (compare(*runs, arm, draws=400).differences[other] for arm, other in (("r3", "grpo"), ("grpo", "r3")))
    value, low, high = back.iqm
    assert there.iqm == pytest.approx((-value, -high, -low))
    assert there.p == back.p
    value, low, high = back.improvement
    assert there.improvement == pytest.approx((1 - value, 1 - high, 1 - low))


def test_arms_are_compared_over_the_same_bases():
    scores, arms, strata, bases = simulated(rng(), {"r3": 0.1, "grpo": 0.0}, strata=2, bases=2)
    with pytest.raises(ValueError, match="task-1, base 1: 0 runs of grpo and 1 of r3"):
        compare(scores[:-1], arms[:-1], strata[:-1], bases[:-1], "r3")
    with pytest.raises(ValueError, match="no run of the reference arm dapo"):
        compare(scores, arms, strata, bases, "dapo")


# The probability of improvement


def side(scores, strata, weights=None):
    values = np.array(scores, float)
    return Side(values, np.array(strata), np.ones((1, len(values))) if weights is None else weights)


def test_the_probability_of_improvement_by_hand():
    # a: 2 beats 1 and ties 2, 3 beats both: 3.5 of 4. b: 0 beats nothing.
    ours, theirs = side([2, 3, 0], list("aab")), side([1, 2, 1], list("aab"))
    assert probability_of_improvement(ours, theirs)[0] == pytest.approx((3.5 / 4 + 0) / 2)
    assert probability_of_improvement(theirs, ours)[0] == pytest.approx((0.5 / 4 + 1) / 2)
    assert probability_of_improvement(ours, ours)[0] == 0.5


def test_it_is_mann_whitneys_statistic_in_every_stratum():
    x, y = rng(1).integers(0, 5, 24), rng(2).integers(0, 5, 24)
    strata = np.repeat(["a", "b", "c"], 8)
    expected = [stats.mannwhitneyu(x[strata == s], y[strata == s]).statistic / 64 for s in "abc"]
    assert probability_of_improvement(side(x, strata), side(y, strata))[0] == pytest.approx(np.mean(expected))


def test_its_draws_are_placements_in_a_plain_loop():
    ours, theirs = [0.2, 0.5, 0.9, 0.4, 0.8, 0.1], [0.3, 0.4, 0.6, 0.4, 0.7, 0.6]
    strata, bases = list("aaabbb"), list("012012")
    weights = base_weights(strata, bases, draws=50)
    value, draws = probability_of_improvement(side(ours, strata, weights), side(theirs, strata, weights))
    for draw in range(50):
        total = 0.0
        for members in ((0, 1, 2), (3, 4, 5)):
            above = {(i, j): (ours[i] > theirs[j]) + 0.5 * (ours[i] == theirs[j]) for i in members for j in members}
            plain = sum(above.values()) / 9
            rows = sum(weights[draw, i] * sum(above[i, j] for j in members) / 3 for i in members) / 3
            columns = sum(weights[draw, j] * sum(above[i, j] for i in members) / 3 for j in members) / 3
            total += rows + columns - plain
        assert draws[draw] == pytest.approx(min(1, max(0, total / 2)))
    assert draws.mean() == pytest.approx(value, abs=0.1)


def test_its_interval_holds_the_value_where_bases_differ_more_than_arms():
    """With two bases in a stratum a draw has one of them; the pairs across bases must not get lost."""
    runs = simulated(rng(7), {"r3": 0.01, "grpo": 0.0}, bases=2, between=0.3, noise=0.0)
    improvement = compare(*runs, "r3", draws=500).differences["grpo"].improvement
    # Above its own base's run, and above the other base's in one of two cases.
    assert improvement.value == pytest.approx(0.75, abs=0.03)
    assert improvement.low <= improvement.value <= improvement.high < 0.9


def test_runs_of_two_cells_of_a_stratum_are_no_pairs():
    scores, arms = np.array([0.5, 0.9, 0.4, 0.8] * 2), ["r3", "r3", "grpo", "grpo"] * 2
    cells, strata, bases = ["bare", "skilled"] * 4, ["task"] * 8, list("00001111")
    found = {cut: compare(scores, arms, strata, bases, "r3", cells=cut, draws=20) for cut in (None, tuple(cells))}
    values = [comparison.differences["grpo"].improvement.value for comparison in found.values()]
    assert values == [0.75, 1]


def test_a_draw_without_a_cell_leaves_a_number():
    scores, strata = np.array([0.5, 0.9, 0.4, 0.8, 0.3, 0.7]), ["task"] * 6
    arms, cells, bases = ["r3", "grpo"] * 3, ["bare"] * 2 + ["skilled"] * 4, list("001122")
    improvement = compare(scores, arms, strata, bases, "grpo", cells=cells, draws=200).differences["r3"].improvement
    # Ahead in the bare cell (0.9 to 0.5), and in every skilled pair (0.7 and 0.8 to 0.3 and 0.4).
    assert improvement.value == pytest.approx((1 + 1) / 2)
    assert improvement.low <= improvement.value <= improvement.high


# Tests


def test_a_p_value_is_twice_the_smaller_tail():
    draws = np.array([-1.0] * 4 + [1.0] * 95)
    assert two_sided_p(draws) == two_sided_p(-draws) == 2 * 5 / 100
    assert two_sided_p(np.ones(99)) == 2 / 100
    assert two_sided_p(np.zeros(99)) == 1


def test_holms_example():
    # The example of Holm (1979) in many textbooks: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == pytest.approx([1, 1])
    assert holm([]).tolist() == []
    assert holm([0.02]).tolist() == [0.02]


def test_holm_step_by_step():
    values = rng().uniform(0, 0.2, 12)
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for step, index in enumerate(np.argsort(values)):
            if values[index] > level / (len(values) - step):
                break
            rejected.add(int(index))
        assert rejected == set(np.flatnonzero(holm(values) <= level).tolist())


@pytest.mark.parametrize(
    ("low", "high", "same"),
    [(-0.019, 0.019, True), (-0.021, 0.01, False), (0.0, 0.02, False), (0.005, 0.015, True), (0.03, 0.04, False)],
)
def test_equivalence_is_an_interval_within_the_margin(low, high, same):
    assert equivalent(Estimate((low + high) / 2, low, high)) is same
    assert equivalent(Estimate((low + high) / 2, low, high), margin=math.inf)
