import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.r3_grpo.ranking import ranked_rewards, structural_entropy_rewards

from .strategies import group_entropies, repeatable, seeds

SERR = {"top_fraction": 0.2, "max_reward": 0.1}


def naive_rewards(token_entropies, top_fraction, max_reward):
    """Follow the paper's text step by step, on responses that have tokens."""
    count = len(token_entropies)
    if count == 1:
        return np.zeros(1)
    peaks, means = [], []
    for entropies in token_entropies:
        k = max(1, math.floor(top_fraction * len(entropies)))
        peaks.append(sum(sorted(map(float, entropies), reverse=True)[:k]) / k)
        means.append(sum(map(float, entropies)) / len(entropies))
    scores = [sum(peaks[i] > peaks[j] and means[i] < means[j] for j in range(count) if j != i) for i in range(count)]
    order = sorted(range(count), key=lambda i: -scores[i])
    rewards = np.zeros(count)
    for i in range(count):
        ranks = [rank for rank, j in enumerate(order) if scores[j] == scores[i]]
        rewards[i] = max_reward * (1 - (sum(ranks) / len(ranks)) / (count - 1))
    return rewards


def test_ranks_a_group_worked_out_by_hand():
    # Peaks are single tokens here (⌊0.2 · 5⌋ = 1). The first dominates the other two, the second the third.
    group = [
        np.array([3.0, 0.0, 0.0, 0.0, 0.0]),
        np.array([2.0, 1.0, 1.0, 0.0, 0.0]),
        np.array([1.0, 1.0, 1.0, 1.0, 1.0]),
    ]
    np.testing.assert_allclose(structural_entropy_rewards(group, **SERR), [0.1, 0.05, 0.0])


@repeatable
@given(group_entropies, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_matches_the_papers_text(group, top_fraction, max_reward):
    group = [entropies for entropies in group if entropies.size]
    if not group:
        return
    found = structural_entropy_rewards(group, top_fraction=top_fraction, max_reward=max_reward)
    np.testing.assert_allclose(found, naive_rewards(group, top_fraction, max_reward), atol=1e-12)


@repeatable
@given(group_entropies, seeds)
def test_permuting_responses_permutes_rewards(group, seed):
    order = np.random.default_rng(seed).permutation(len(group))
    found = structural_entropy_rewards([group[i] for i in order], **SERR)
    np.testing.assert_array_equal(found, structural_entropy_rewards(group, **SERR)[order])


@repeatable
@given(group_entropies, seeds)
def test_the_order_of_tokens_within_a_response_does_not_matter(group, seed):
    rng = np.random.default_rng(seed)
    found = structural_entropy_rewards([rng.permutation(entropies) for entropies in group], **SERR)
    np.testing.assert_array_equal(found, structural_entropy_rewards(group, **SERR))


@repeatable
@given(group_entropies)
def test_rewards_lie_within_zero_and_the_maximum_and_average_to_its_half(group):
    found = structural_entropy_rewards(group, **SERR)
    assert found.shape == (len(group),) and np.isfinite(found).all()
    assert (found >= 0).all() and (found <= 0.1).all()
    if len(group) > 1:
        assert found.mean() == pytest.approx(0.05)


@repeatable
@given(
    st.floats(0.0, 12.0, allow_subnormal=False),
    st.lists(st.integers(1, 60), min_size=2, max_size=8),
    st.booleans(),
)
def test_responses_of_constant_entropy_tie_whatever_their_length(entropy, lengths, double):
    dtype = np.float64 if double else np.float32
    group = [np.full(length, entropy, dtype=dtype) for length in lengths]
    np.testing.assert_array_equal(structural_entropy_rewards(group, **SERR), np.full(len(group), 0.05))


def test_ties_share_the_mean_of_their_ranks():
    best, rest = np.array([1.5, 0.0]), np.array([1.0, 1.0])
    found = structural_entropy_rewards([rest, best, rest, rest], **SERR)
    np.testing.assert_allclose(found, [0.1 / 3, 0.1, 0.1 / 3, 0.1 / 3])


def test_a_single_response_gets_zero_and_no_response_none():
    np.testing.assert_array_equal(structural_entropy_rewards([np.array([1.0, 2.0])], **SERR), [0.0])
    np.testing.assert_array_equal(structural_entropy_rewards([np.array([])], **SERR), [0.0])
    assert structural_entropy_rewards([], **SERR).shape == (0,)


def test_a_response_without_tokens_ranks_last():
    empty, flat, peaked = np.array([]), np.array([1.0, 1.0]), np.array([1.5, 0.0])
    np.testing.assert_allclose(structural_entropy_rewards([empty, flat, peaked], **SERR), [0.0, 0.05, 0.1])
    # Even against entropies of 0, which a peak and a mean of 0 would tie with.
    np.testing.assert_allclose(structural_entropy_rewards([empty, np.zeros(3)], **SERR), [0.0, 0.1])
    np.testing.assert_allclose(structural_entropy_rewards([empty, empty], **SERR), [0.05, 0.05])


def test_the_peak_holds_at_least_one_token():
    group = [np.array([5.0, 0.0]), np.array([3.0, 3.0])]
    np.testing.assert_allclose(
        structural_entropy_rewards(group, top_fraction=0.0, max_reward=0.1),
        structural_entropy_rewards(group, top_fraction=0.5, max_reward=0.1),
    )


@pytest.mark.parametrize(
    ("group", "settings"),
    [
        ([np.array([np.nan])], {}),
        ([np.array([1.0]), np.array([np.inf])], {}),
        ([np.ones((2, 2))], {}),
        ([np.array([1.0])], {"top_fraction": 1.5}),
        ([np.array([1.0])], {"max_reward": -0.1}),
    ],
)
def test_refuses_bad_input(group, settings):
    with pytest.raises(ValueError, match="must"):
        structural_entropy_rewards(group, **(SERR | settings))


# --- one group: which responses are ranked, and against what ---


@st.composite
def wrong_groups(draw):
    group = draw(group_entropies)
    truncated = np.array(draw(st.lists(st.booleans(), min_size=len(group), max_size=len(group))))
    return group, truncated


def apply(group, truncated, correct=None, *, scope="truncated", baseline="finished_wrong", rewards=None):
    correct = np.zeros(len(group), dtype=bool) if correct is None else correct
    rewards = correct.astype(float) if rewards is None else rewards
    return ranked_rewards(rewards, correct, truncated, group, scope=scope, baseline=baseline, **SERR)


@repeatable
@given(wrong_groups())
def test_finished_wrong_never_ranks_a_truncated_answer_above_a_finished_wrong_one(case):
    group, truncated = case
    rewards, ranked = apply(group, truncated)
    np.testing.assert_array_equal(ranked, truncated)
    np.testing.assert_array_equal(rewards[~truncated], 0.0)
    assert (rewards[truncated] <= 0.0).all() and (rewards >= -0.1).all()


@repeatable
@given(wrong_groups())
def test_finished_wrong_is_the_paper_shifted(case):
    group, truncated = case
    shifted, ranked = apply(group, truncated)
    paper, ranked_in_paper = apply(group, truncated, baseline="paper")
    np.testing.assert_array_equal(ranked, ranked_in_paper)
    shift = 0.1 if ranked.sum() > 1 else 0.0
    np.testing.assert_array_equal(shifted[ranked], paper[ranked] - shift)


@repeatable
@given(wrong_groups(), st.sampled_from(["truncated", "all"]))
def test_centred_rewards_neither_running_on_nor_giving_up(case, scope):
    group, truncated = case
    rewards, ranked = apply(group, truncated, scope=scope, baseline="centered")
    assert rewards[ranked].sum() == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_array_equal(rewards[~ranked], 0.0)
    if ranked.sum() > 1:
        paper, _ = apply(group, truncated, scope=scope, baseline="paper")
        np.testing.assert_allclose(rewards[ranked], paper[ranked] - paper[ranked].mean(), atol=1e-12)


@repeatable
@given(wrong_groups())
def test_the_paper_ranks_the_responses_in_scope_among_themselves(case):
    group, truncated = case
    chosen = [entropies for entropies, cut in zip(group, truncated, strict=True) if cut]
    rewards, _ = apply(group, truncated, baseline="paper")
    np.testing.assert_array_equal(rewards[truncated], structural_entropy_rewards(chosen, **SERR))
    everyone, ranked = apply(group, truncated, scope="all", baseline="paper")
    assert ranked.all()
    np.testing.assert_array_equal(everyone, structural_entropy_rewards(group, **SERR))


@repeatable
@given(wrong_groups(), st.sampled_from(["truncated", "all"]))
def test_a_group_with_a_correct_member_comes_back_unchanged(case, scope):
    group, truncated = case
    correct = np.zeros(len(group), dtype=bool)
    correct[0] = True
    rewards, ranked = apply(group, truncated, correct, scope=scope, baseline="paper", rewards=correct * 1.5)
    np.testing.assert_array_equal(rewards, correct * 1.5)
    assert not ranked.any()


@repeatable
@given(wrong_groups(), seeds, st.sampled_from(["finished_wrong", "centered", "paper"]))
def test_permuting_a_group_permutes_what_it_gets(case, seed, baseline):
    group, truncated = case
    order = np.random.default_rng(seed).permutation(len(group))
    rewards, ranked = apply(group, truncated, baseline=baseline)
    moved, moved_ranked = apply([group[i] for i in order], truncated[order], baseline=baseline)
    np.testing.assert_array_equal(moved, rewards[order])
    np.testing.assert_array_equal(moved_ranked, ranked[order])


@pytest.mark.parametrize("baseline", ["finished_wrong", "centered", "paper"])
def test_a_response_ranked_alone_gets_zero_unshifted(baseline):
    rewards, ranked = apply([np.ones(3), np.ones(4)], np.array([True, False]), baseline=baseline)
    np.testing.assert_array_equal(rewards, [0.0, 0.0])
    np.testing.assert_array_equal(ranked, [True, False])


def test_entropies_are_needed_only_in_scope():
    group, truncated = [None, np.array([1.5, 0.0]), np.array([1.0, 1.0])], np.array([False, True, True])
    rewards, _ = apply(group, truncated)
    np.testing.assert_allclose(rewards, [0.0, 0.0, -0.1])
    with pytest.raises(ValueError, match="response 0 is to be ranked"):
        apply(group, truncated, scope="all", baseline="paper")


def test_leaves_its_input_alone():
    rewards, truncated = np.zeros(2), np.array([True, True])
    shaped, ranked = apply([np.array([1.5, 0.0]), np.array([1.0, 1.0])], truncated, rewards=rewards)
    shaped[:], ranked[:] = 9.0, False
    np.testing.assert_array_equal(rewards, [0.0, 0.0])
    np.testing.assert_array_equal(truncated, [True, True])


@pytest.mark.parametrize(
    "settings",
    [{"scope": "all"}, {"scope": "some"}, {"baseline": "none"}],
)
def test_refuses_settings_that_do_not_go_together(settings):
    with pytest.raises(ValueError, match=r"scope|baseline"):
        apply([np.ones(2)], np.array([True]), **settings)


def test_refuses_a_group_of_unlike_lengths():
    with pytest.raises(ValueError, match="one length"):
        apply([np.ones(2)], np.array([True, False]))
