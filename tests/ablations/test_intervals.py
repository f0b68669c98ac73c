"""Student's t against closed forms, and against what an interval promises."""

import math

import numpy as np
import pytest

from benchmarks.ablation.intervals import half_width, paired_difference, t_interval


def test_two_values_have_the_quantile_of_the_cauchy_distribution():
    found = t_interval([0.4, 0.6])
    # t with one degree of freedom is Cauchy's: its quantile is tan(π (p − 1/2)); s/√2 is half the distance.
    half = math.tan(math.pi * 0.475) * 0.1
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    assert found.count == 2


def test_three_values_have_the_quantile_in_closed_form():
    values = [0.1, 0.2, 0.6]
    p = 0.95  # with two degrees of freedom P(|t| < x) = x / √(2 + x²)
    half = math.sqrt(2 * p**2 / (1 - p**2)) * np.std(values, ddof=1) / math.sqrt(3)
    found = t_interval(values)
    assert found.high - found.mean == pytest.approx(half)
    assert found.mean - found.low == pytest.approx(half)


def test_five_values_have_the_tables_quantile():
    found = t_interval([1, 2, 3, 4, 5])
    assert found.high - found.mean == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5), rel=1e-6)


def test_one_value_has_no_interval_and_none_no_mean():
    assert math.isnan(t_interval([0.5]).low) and not t_interval([0.5]).excludes_zero
    with pytest.raises(ValueError, match="at least one value"):
        t_interval([])


def test_five_seeds_are_covered_as_often_as_promised():
    draws = np.random.default_rng(0).normal(0.5, 0.1, size=(5, 20_000))
    half = half_width(draws)
    covered = np.abs(draws.mean(axis=0) - 0.5) <= half
    assert covered.mean() == pytest.approx(0.95, abs=0.006)
    # The normal distribution's quantile would have promised too much.
    assert (np.abs(draws.mean(axis=0) - 0.5) <= half * 1.96 / 2.776445).mean() < 0.9


def test_what_seeds_share_cancels_in_a_paired_difference():
    reference = {1: 0.2, 2: 0.5, 3: 0.8}
    found = paired_difference({seed: value + 0.05 for seed, value in reference.items()}, reference)
    assert found is not None and found.excludes_zero
    assert (found.low, found.high) == pytest.approx((0.05, 0.05))
    unpaired = t_interval([value + 0.05 for value in reference.values()])
    assert unpaired.low < t_interval(list(reference.values())).mean


def test_a_paired_difference_takes_common_seeds_only():
    found = paired_difference({1: 0.5, 2: 0.9, 9: 0.0}, {1: 0.4, 2: 0.6, 3: 1.0})
    assert found is not None and found.count == 2
    assert found.mean == pytest.approx(0.2)
    assert paired_difference({1: 0.5}, {2: 0.5}) is None
