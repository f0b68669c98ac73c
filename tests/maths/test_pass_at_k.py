from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.evaluation.metrics import mean_pass_at_k, pass_at_k

from .strategies import repeatable


@repeatable
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_is_the_share_of_subsets_that_hold_a_correct_sample(samples, data):
    k = data.draw(st.integers(1, len(samples)))
    expected = np.mean([any(subset) for subset in combinations(samples, k)])
    assert pass_at_k(len(samples), sum(samples), k) == pytest.approx(expected, abs=1e-12)


@repeatable
@given(st.integers(1, 300), st.data())
def test_grows_with_k_from_the_share_of_correct_samples(n, data):
    c = data.draw(st.integers(0, n))
    values = [pass_at_k(n, c, k) for k in range(1, n + 1, max(1, n // 8))]
    assert values == sorted(values)
    assert values[0] == c / n
    assert pass_at_k(n, c, n) == float(c > 0)


def test_averages_over_problems():
    correct = np.array([[True, False, False, False], [False] * 4, [True] * 4])
    assert mean_pass_at_k(correct, 1) == pytest.approx((0.25 + 0 + 1) / 3)
    assert mean_pass_at_k(correct, 2) == pytest.approx((0.5 + 0 + 1) / 3)
    assert mean_pass_at_k(correct, 4) == pytest.approx(2 / 3)


def test_problems_may_differ_in_samples():
    assert mean_pass_at_k([np.array([True, False]), np.array([True])], 1) == 0.75


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5), (0, 0, 1)])
def test_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="must lie between"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize("correct", [np.zeros((0, 4), dtype=bool), np.zeros(4, dtype=bool), [np.zeros(2), np.zeros(0)]])
def test_refuses_what_is_no_table_of_outcomes(correct):
    with pytest.raises(ValueError, match=r"problem|must"):
        mean_pass_at_k(correct, 1)
