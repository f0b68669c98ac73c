"""The suite's statistics against SciPy or a simulated truth; the pages' test pins what the records give."""

import itertools

import numpy as np
import pytest
from scipy import stats

from benchmarks.looks import NAMED, looks
from benchmarks.suite import (
    Run,
    Side,
    areas,
    base_weights,
    compare,
    holm,
    interquartile_mean,
    paired_mean,
    probability_of_improvement,
    stratified_mean,
    two_sided_p,
    widen,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def run(points=((0, 0.0, 0.1), (1000, 10.0, 0.3), (3000, 20.0, 0.5)), **changed):
    """A run with tokens, CPU seconds and pass@1 at these points."""
    curve = dict(zip(("tokens", "cpu_s", "pass@1"), np.transpose(points), strict=True))
    given = {"phase": "test", "task": "sorting", "difficulty": "easy", "skill": "none", "base": 0, "arm": "r3"}
    return Run(**{**given, "seed": 1, "lr": 1e-4, "curve": curve, "final": {}, **changed})


def simulated(generator, gains, *, strata=16, bases=2, between=0.05, noise=0.06):
    """Runs and scores; all arms of a base share its deviation."""
    runs, scores = [], []
    for stratum, base in itertools.product(range(strata), range(bases)):
        shared = 0.1 + 0.7 * stratum / strata + generator.normal(0, between)
        for arm, gain in gains.items():
            runs.append(run(task=f"task-{stratum}", base=base, arm=arm))
            scores.append(shared + gain + generator.normal(0, noise))
    return runs, np.array(scores)


def test_the_area_is_that_of_trapezoids_up_to_the_budget_or_the_shortest_run():
    # 1000 tokens at a mean of 0.2, then 2000 at one of 0.4; the line from 0.3 to 0.5 is at 0.4 after 2000.
    assert areas([run()], "tokens", 3000) == pytest.approx([(0.2 + 2 * 0.4) / 3])
    assert areas([run()], "tokens", 2000) == pytest.approx([(0.2 + 0.35) / 2])
    assert areas([run()], "cpu_s", 15) == pytest.approx([(10 * 0.2 + 5 * 0.35) / 15])
    short = run(points=((0, 0.0, 0.1), (1000, 10.0, 0.3)), arm="grpo")
    assert areas([run(), short, run(task="other")], "tokens") == pytest.approx([0.2, 0.2, 1 / 3])


def test_the_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([9.0, 1, 2, 3])) == 2.5
    # A quarter of 6 runs is 1.5: the second and the fifth count half.
    assert interquartile_mean(np.array([0, 1, 2, 3, 5, 100])) == pytest.approx((0.5 * 1 + 2 + 3 + 0.5 * 5) / 3)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_it_is_scipys_trimmed_mean_of_every_run_four_times_and_a_weight_of_two_is_the_run_twice(count):
    scores = rng().normal(size=count)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(np.repeat(scores, 4), 0.25))
    weights = 1.0 + rng(1).integers(0, 3, (20, count))
    expected = [interquartile_mean(np.repeat(scores, row.astype(int))) for row in weights]
    assert interquartile_mean(scores, weights) == pytest.approx(np.array(expected))


def test_every_stratum_weighs_the_same_in_a_stratified_mean():
    values, strata = np.array([1.0, 1, 1, 5]), ["a", "a", "a", "b"]
    assert stratified_mean(values, strata) == 3
    assert stratified_mean(values[:, None] * [1, 2], strata).tolist() == [3, 6]
    weights = np.array([[2.0, 0, 0, 1], [1, 1, 1, 3]])
    assert stratified_mean(np.array([3.0, 1, 1, 5]), strata, weights) == pytest.approx([4, (5 / 3 + 5) / 2])


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_draw_takes_one_base_less_scaled_up_so_that_the_variance_of_a_mean_is_the_unbiased_one(count):
    scores = rng(count).normal(size=count)
    weights = base_weights(["a"] * count, [f"{base}" for base in range(count)], draws=20_000)
    assert np.allclose(weights.sum(axis=1), count)
    assert (weights @ scores / count).std() == pytest.approx(stats.sem(scores), rel=0.03)
    twins = base_weights(list("aaaa"), list("0101"), draws=50)
    assert np.array_equal(twins[:, :2], twins[:, 2:]), "all runs of a base are drawn together"


def test_normal_draws_are_widened_to_students_t():
    draws = 2 + 3 * stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    half = 3 * stats.t.ppf(0.975, 5)
    assert np.quantile(widen(2, draws, 5), [0.025, 0.975]) == pytest.approx((2 - half, 2 + half), rel=0.01)
    assert widen(2, draws, 1e9) == pytest.approx(draws, abs=1e-6)
    assert np.isfinite(widen(2, draws[:999], 5)).all()


def test_a_paired_mean_is_scipys_t_interval():
    differences = rng().normal(0.1, 1, 7)
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert paired_mean(differences) == pytest.approx((differences.mean(), expected.low, expected.high))


def test_p_values_are_twice_the_smaller_tail_and_holm_steps_down():
    draws = np.array([-1.0] * 4 + [1.0] * 95)
    assert two_sided_p(draws) == two_sided_p(-draws) == 2 * 5 / 100
    assert two_sided_p(np.zeros(99)) == 1
    # The example of Holm (1979) in many textbooks.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == pytest.approx([1, 1])


def test_the_probability_of_improvement_is_mann_whitneys_statistic_in_every_cell():
    x, y, cells = rng(1).integers(0, 5, 24), rng(2).integers(0, 5, 24), np.repeat(["a", "b", "c"], 8)
    ours, theirs = (Side(scores, cells, np.ones((1, 24))) for scores in (x, y))
    expected = [stats.mannwhitneyu(x[cells == cell], y[cells == cell]).statistic / 64 for cell in "abc"]
    value, draws = probability_of_improvement(ours, theirs)
    assert value == pytest.approx(np.mean(expected)) and draws == pytest.approx([value])


@pytest.mark.parametrize(
    ("gain", "noise", "verdict"),
    [
        (0.1, 0.02, "ahead"),
        (-0.1, 0.02, "behind"),
        (0.0, 0.01, "equivalent within 0.02"),
        (0.01, 0.15, "indistinguishable"),
        (0.01, 0.002, "ahead, by less than 0.02"),
    ],
)
def test_verdicts_are_the_truth(gain, noise, verdict):
    runs, scores = simulated(rng(5), {"r3": gain, "grpo": 0.0}, noise=noise)
    levels, differences = compare(runs, scores, draws=400)
    assert differences["grpo"].verdict == verdict
    assert levels["r3"].value - levels["grpo"].value == pytest.approx(differences["grpo"].iqm.value)


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator, suites, covered = rng(11), 60, 0
    for _ in range(suites):
        iqm = compare(*simulated(generator, {"r3": 0.0, "grpo": 0.0}), draws=300)[1]["grpo"].iqm
        covered += iqm.low <= 0 <= iqm.high
    assert covered / suites == pytest.approx(0.95, abs=0.056), "two standard errors of 60 suites"


def test_an_arm_looks_the_same_whatever_is_drawn_with_it_and_no_two_look_alike():
    for arms in itertools.permutations(["r3", "mine", "grpo"], 3):
        found = looks(arms)
        assert list(found) == list(arms)
        assert (found["r3"], found["grpo"]) == (NAMED["r3"], NAMED["grpo"])
        assert found["mine"] not in NAMED.values()
    assert len(set(looks([*NAMED, *(f"mine-{number}" for number in range(10))]).values())) == len(NAMED) + 10
