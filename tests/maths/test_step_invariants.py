"""What has to hold across the pieces of a step, on arrays alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.grpo.advantages import group_advantages
from algorithms.grpo.rewards import length_bonus_reward
from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.history.store import ReplayHistory
from algorithms.r3_grpo.ranking import ranked_rewards
from algorithms.rollout.types import Context, Rollout

from .strategies import entry, group_entropies, repeatable

STD_FLOOR = 0.5


def rollout(length, correct, prompt_length=2, padding=0):
    size = prompt_length + length + padding
    mask = np.zeros(size, dtype=bool)
    mask[prompt_length : prompt_length + length] = True
    return Rollout(
        request_id=0,
        uid="q",
        group=0,
        context=Context.PLAIN,
        tokens=np.arange(size, dtype=np.int32),
        loss_mask=mask,
        sampling_logprobs=np.zeros(size, dtype=np.float32),
        reward=float(correct),
        correct=correct,
        truncated=False,
        verdict="equal" if correct else "different",
        weights_version=0,
    )


def pure_serr_advantages(group, max_reward, **settings):
    count = len(group)
    rewards, _ = ranked_rewards(
        np.zeros(count),
        np.zeros(count, dtype=bool),
        np.ones(count, dtype=bool),
        group,
        top_fraction=0.2,
        max_reward=max_reward,
        scope="truncated",
        baseline="finished_wrong",
    )
    return group_advantages(rewards, **settings)


@repeatable
@given(group_entropies, st.floats(0.001, 0.9), st.floats(0.001, 0.9))
def test_without_a_floor_the_best_ranking_reward_cancels_out(group, one, other):
    first, second = (pure_serr_advantages(group, best, std_floor=0.0, eps=0.0) for best in (one, other))
    np.testing.assert_allclose(first, second, atol=1e-7)


@repeatable
@given(group_entropies, st.floats(0.001, 0.3), st.floats(1.0, 3.0))
def test_with_the_floor_advantages_scale_with_the_best_ranking_reward(group, best, factor):
    small, large = (pure_serr_advantages(group, reward, std_floor=STD_FLOOR) for reward in (best, factor * best))
    np.testing.assert_allclose(large, factor * small, atol=1e-12)


@repeatable
@given(group_entropies)
def test_with_the_floor_unsolved_groups_push_less_than_solved_ones(group):
    unsolved = pure_serr_advantages(group, 0.1, std_floor=STD_FLOOR)
    solved = group_advantages(np.array([1.0, 0.0]))
    assert np.abs(unsolved).max() <= 0.2 < np.abs(solved).min()


@repeatable
@given(st.lists(st.integers(1, 64), min_size=2, max_size=8))
def test_an_all_correct_group_with_a_length_bonus_still_asks_for_failures(lengths):
    history = ReplayHistory()
    history.add(entry(correct=False))
    samples = [
        Sample(
            rollout=rollout(n, True), reward=length_bonus_reward(True, n, length_bonus=1.0, length_bonus_max_tokens=64)
        )
        for n in lengths
    ]
    group = Group(Prompt("q"), samples)
    assert group.homogeneous and group.any_correct
    drawn = history.sample_opposite_outcomes(
        "q",
        correct_group=group.any_correct,
        k=1,
        contexts="same",
        context=group.prompt.context,
        rng=np.random.default_rng(0),
    )
    assert len(drawn) == 1
    mixed = np.array([sample.reward for sample in group.samples] + [one.reward for one in drawn])
    assert group_advantages(mixed)[-1] < 0 < group_advantages(mixed)[:-1].max()


def test_replay_turns_a_silent_group_into_one_that_teaches():
    wrong = np.zeros(8)
    np.testing.assert_array_equal(group_advantages(wrong), 0.0)
    mixed = group_advantages(np.append(wrong, 1.0))
    assert mixed[-1] > 0 and (mixed[:-1] < 0).all()


@repeatable
@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=8))
def test_a_group_with_nothing_to_rank_keeps_grpos_advantages_bit_for_bit(rewards):
    rewards = np.array(rewards)
    shaped, ranked = ranked_rewards(
        rewards,
        np.ones(len(rewards), dtype=bool),
        np.zeros(len(rewards), dtype=bool),
        [None] * len(rewards),
        top_fraction=0.2,
        max_reward=0.1,
        scope="truncated",
        baseline="finished_wrong",
    )
    assert not ranked.any()
    if len(set(rewards)) > 1:
        grpo = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        np.testing.assert_array_equal(group_advantages(shaped), grpo)
    else:
        np.testing.assert_array_equal(group_advantages(shaped), np.zeros(len(rewards)))


def test_a_lone_truncated_answer_makes_no_advantage():
    assert pure_serr_advantages([np.array([1.0, 2.0])], 0.1, std_floor=STD_FLOOR) == pytest.approx([0.0])
