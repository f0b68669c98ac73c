"""RepExp: bonuses by hand and from whole inverses, and which groups get them."""

from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.methods.rep_exp import RepExp, RepExpSettings, elliptic_bonuses, sparse_projection
from tests.methods.simulated import services


def test_two_responses_explain_each_other_as_far_as_the_regularization_lets_them():
    """States -1 and 1 about their mean: 1 · (0.5 + 1)⁻¹ · 1."""
    assert elliptic_bonuses(np.array([[0.0], [2.0]]), 0.5).tolist() == pytest.approx([2 / 3, 2 / 3])
    assert elliptic_bonuses(np.array([[3.0, 4.0]]), 0.5).tolist() == [0.0]


def test_bonuses_are_those_of_the_whole_inverse():
    states = np.random.default_rng(0).normal(size=(5, 7))
    centered, expected = states - states.mean(0), []
    for own in range(5):
        covariance = 0.1 * np.eye(7)
        for other in (place for place in range(5) if place != own):
            covariance += np.outer(centered[other], centered[other])
        expected.append(centered[own] @ np.linalg.inv(covariance) @ centered[own])
    np.testing.assert_allclose(elliptic_bonuses(states, 0.1), expected, rtol=1e-9)


def test_a_projection_is_sparse_and_keeps_lengths_in_expectation():
    matrix = sparse_projection(100, 4000, np.random.default_rng(0))
    assert set(np.abs(np.unique(matrix)).round(9)) == {0.0, round(float(np.sqrt(10 / 4000)), 9)}
    assert np.mean(matrix != 0) == pytest.approx(0.1, abs=0.005)
    states = np.random.default_rng(1).normal(size=100)
    assert np.sum((states @ matrix) ** 2) == pytest.approx(np.sum(states**2), rel=0.1)


def group(*rewards, empty=False):
    samples = [Sample(SimpleNamespace(correct=reward > 0, response_length=2), float(reward)) for reward in rewards]
    samples[-1].rollout.response_length = 0 if empty else 2
    return Group(Prompt("q"), samples)


def test_groups_with_a_correct_response_get_the_bonus_under_the_first_model():
    asked = []

    def score_under(samples, under, statistic):
        asked.append((len(samples), under, statistic))
        return [np.array([float(number), 1.0], np.float32) for number in range(len(samples))]

    groups = [group(1, 0, 1), group(0, 0), group(1, 1, 0, empty=True)]
    one = RepExp(RepExpSettings(coefficient=2.0, dimensions=3), services(score_under=score_under))
    batch = StepBatch(0, groups=groups)
    one.before_rewards(batch)
    for each in groups:
        one.rewards(each)
    assert asked == [(5, "reference", "mean_states")]
    rng = one.services.rng("rep_exp", 0)
    projected = np.array([[number, 1.0] for number in range(5)]) @ sparse_projection(2, 3, rng)
    bonuses = [*elliptic_bonuses(projected[:3], 0.01), *elliptic_bonuses(projected[3:], 0.01)]
    paid = [sample.shaped_reward for each in groups for sample in each.samples]
    expected = [1 + 2 * bonuses[0], 2 * bonuses[1], 1 + 2 * bonuses[2]]
    assert paid[:3] == pytest.approx(expected) and paid[3:5] == [None, None] and paid[7] is None
    assert paid[5:7] == pytest.approx([1 + 2 * bonuses[3], 1 + 2 * bonuses[4]])
    assert one.metrics == pytest.approx({"rep_exp/bonus": np.mean(bonuses), "rep_exp/groups": 2})
    assert [one.is_informative(each) for each in groups] == [True, False, True]
