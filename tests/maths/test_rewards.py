import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.grpo.rewards import length_bonus_reward, overlong_penalty, rank_rewards

from .strategies import repeatable


def test_pays_correctness_and_a_bonus_for_brevity():
    assert length_bonus_reward(True, 0, length_bonus=1.0, length_bonus_max_tokens=100) == 2.0
    assert length_bonus_reward(True, 25, length_bonus=1.0, length_bonus_max_tokens=100) == 1.75
    assert length_bonus_reward(True, 25, length_bonus=0.5, length_bonus_max_tokens=100) == 1.375
    assert length_bonus_reward(True, 100, length_bonus=1.0, length_bonus_max_tokens=100) == 1.0
    assert length_bonus_reward(True, 250, length_bonus=1.0, length_bonus_max_tokens=100) == 1.0


@repeatable
@given(st.integers(0, 10**6), st.floats(0, 3), st.integers(1, 10**6))
def test_wrong_answers_earn_nothing_and_right_ones_at_least_one(length, length_bonus, length_bonus_max_tokens):
    assert (
        length_bonus_reward(False, length, length_bonus=length_bonus, length_bonus_max_tokens=length_bonus_max_tokens)
        == 0.0
    )
    assert (
        1.0
        <= length_bonus_reward(True, length, length_bonus=length_bonus, length_bonus_max_tokens=length_bonus_max_tokens)
        <= 1.0 + length_bonus
    )


@repeatable
@given(st.integers(0, 10**6))
def test_without_a_weight_it_is_plain_correctness(length):
    assert length_bonus_reward(True, length, length_bonus=0.0, length_bonus_max_tokens=32768) == 1.0


@pytest.mark.parametrize(("length", "length_bonus_max_tokens"), [(-1, 10), (1, 0)])
def test_refuses_lengths_out_of_range(length, length_bonus_max_tokens):
    with pytest.raises(ValueError, match="must"):
        length_bonus_reward(True, length, length_bonus=1.0, length_bonus_max_tokens=length_bonus_max_tokens)


@repeatable
@given(st.integers(0, 30000))
def test_the_overlong_penalty_is_dapos(length):
    expected, cache = 20480, 4096  # of the paper
    if length <= expected - cache:
        dapo = 0.0
    elif length <= expected:
        dapo = ((expected - cache) - length) / cache
    else:
        dapo = -1.0
    assert overlong_penalty(length, limit=expected, share=0.2, penalty=1.0) == pytest.approx(dapo, abs=1e-9)
    assert overlong_penalty(length, limit=expected, share=0.2, penalty=0.5) == pytest.approx(dapo / 2, abs=1e-9)


def test_without_a_penalty_length_costs_nothing():
    assert overlong_penalty(100, limit=100, share=0.2, penalty=0.0) == 0.0


@pytest.mark.parametrize("change", [{"limit": 0}, {"share": 0.0}, {"share": 1.1}, {"penalty": -1.0}])
def test_a_penalty_refuses_what_is_out_of_range(change):
    with pytest.raises(ValueError, match="must"):
        overlong_penalty(5, **{"limit": 10, "share": 0.2, "penalty": 0.5, **change})
    with pytest.raises(ValueError, match="must"):
        overlong_penalty(-1, limit=10, share=0.2, penalty=0.5)


def test_ranks_are_paid_evenly_from_the_first_to_the_last():
    assert rank_rewards(np.array([2, 0, 1])).tolist() == [0.0, 1.0, 0.5]
    assert rank_rewards(np.array([0, 1.5, 3, 1.5]), 0.2).tolist() == pytest.approx([0.2, 0.1, 0.0, 0.1])
    assert rank_rewards(np.array([0])).tolist() == [0.0] and rank_rewards(np.array([])).tolist() == []
