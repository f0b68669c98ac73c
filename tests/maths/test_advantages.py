import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.grpo.advantages import PLAIN, group_advantages, leave_one_out_advantages, mean_advantages
from algorithms.grpo.types import Group, Prompt, Sample

from .strategies import group_rewards, repeatable, seeds


def test_matches_a_group_worked_out_by_hand():
    # mean 0.25, population std sqrt(3)/4
    expected = (np.array([1.0, 0.0, 0.0, 0.0]) - 0.25) / (np.sqrt(3) / 4 + 1e-4)
    np.testing.assert_allclose(group_advantages(np.array([1, 0, 0, 0])), expected, rtol=1e-12)


@repeatable
@given(group_rewards, st.floats(0.1, 3.0), st.floats(1e-6, 1.0), st.floats(0.0, 2.0))
def test_is_equation_3_with_a_floor(rewards, std_scale, eps, std_floor):
    std = np.sqrt(np.mean((rewards - np.mean(rewards)) ** 2))
    expected = (rewards - np.mean(rewards)) / (std_scale * max(std, std_floor) + eps)
    found = group_advantages(rewards, std_scale=std_scale, eps=eps, std_floor=std_floor)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert found.dtype == np.float64 and found.shape == rewards.shape


@repeatable
@given(group_rewards, seeds)
def test_permuting_rewards_permutes_advantages(rewards, seed):
    order = np.random.default_rng(seed).permutation(len(rewards))
    np.testing.assert_allclose(group_advantages(rewards[order]), group_advantages(rewards)[order], atol=1e-9)


@repeatable
@given(group_rewards)
def test_sum_to_zero(rewards):
    assert abs(group_advantages(rewards).sum()) < 1e-6


@repeatable
@given(st.floats(-1e6, 1e6), st.integers(1, 40), st.sampled_from([0.0, 1e-12, 1e-4]))
def test_equal_rewards_give_exact_zeros_however_the_mean_rounds(reward, size, eps):
    np.testing.assert_array_equal(group_advantages(np.full(size, reward), eps=eps), np.zeros(size))


def test_a_rounded_mean_makes_no_advantage():
    rewards = np.full(7, 0.1)
    assert rewards.mean() != 0.1, "pick rewards whose mean does round"
    np.testing.assert_array_equal(group_advantages(rewards, eps=1e-18), np.zeros(7))


@repeatable
@given(st.lists(st.integers(0, 8), min_size=2, max_size=8), st.floats(0.01, 100.0))
def test_without_floor_and_eps_the_scale_of_rewards_does_not_matter(ranks, factor):
    rewards = np.array(ranks, dtype=np.float64)
    if len(set(ranks)) == 1:
        return
    np.testing.assert_allclose(
        group_advantages(factor * rewards, eps=0.0), group_advantages(rewards, eps=0.0), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("rewards", [[], [[1.0, 0.0]], [1.0, np.nan], [np.inf, 0.0], 1.0])
def test_refuses_what_is_no_group_of_finite_rewards(rewards):
    with pytest.raises(ValueError, match="rewards must be"):
        group_advantages(np.array(rewards, dtype=np.float64))


@pytest.mark.parametrize("setting", [{"std_scale": -1.0}, {"eps": -1e-4}, {"std_floor": np.nan}])
def test_refuses_settings_out_of_range(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        group_advantages(np.array([0.0, 1.0]), **setting)


def test_refuses_a_denominator_of_zero():
    with pytest.raises(ValueError, match="denominator"):
        group_advantages(np.array([0.0, 1.0]), std_scale=0.0, eps=0.0)


def test_leaves_its_input_alone():
    rewards = np.array([0.0, 1.0])
    group_advantages(rewards)
    np.testing.assert_array_equal(rewards, [0.0, 1.0])


@repeatable
@given(group_rewards)
def test_without_a_deviation_it_is_the_distance_from_the_mean(rewards):
    expected = [reward - sum(rewards) / len(rewards) for reward in rewards]
    np.testing.assert_allclose(mean_advantages(rewards), expected, atol=1e-9)


@repeatable
@given(group_rewards)
def test_leave_one_out_compares_with_the_others(rewards):
    others = [np.delete(rewards, index) for index in range(len(rewards))]
    expected = [reward - rest.mean() if len(rest) else 0.0 for reward, rest in zip(rewards, others, strict=True)]
    np.testing.assert_allclose(leave_one_out_advantages(rewards), expected, atol=1e-9)


@pytest.mark.parametrize("estimator", PLAIN)
def test_every_advantage_of_equal_rewards_is_exactly_zero_and_of_odd_input_an_error(estimator):
    def advantages(rewards):
        return estimator().advantages(Group(Prompt("q"), [Sample(None, reward) for reward in rewards.tolist()]))

    assert np.full(7, 0.1).mean() != 0.1
    np.testing.assert_array_equal(advantages(np.full(7, 0.1)), np.zeros(7))
    with pytest.raises(ValueError, match="rewards must be"):
        advantages(np.array([1.0, np.nan]))
