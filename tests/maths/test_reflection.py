import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.r3_grpo.reflection import is_hard, share_limit
from algorithms.rollout.attempts import cut_attempt

from .strategies import repeatable, seeds

GAP = np.array([-1, -2, -1], dtype=np.int32)


@pytest.mark.parametrize(
    ("mean", "attempts", "hard"),
    [(0.0, 8, True), (0.24, 8, True), (0.25, 8, False), (0.9, 8, False), (0.0, 7, False), (None, 0, False)],
)
def test_hard_is_a_low_mean_over_enough_attempts(mean, attempts, hard):
    assert is_hard(mean, attempts, threshold=0.25, min_attempts=8) is hard


def test_a_query_without_history_is_not_hard_even_if_no_attempts_are_asked_for():
    assert not is_hard(None, 0, threshold=0.25, min_attempts=0)


@repeatable
@given(st.integers(0, 60), st.one_of(st.none(), st.integers(0, 70)), st.integers(0, 5))
def test_a_cut_attempt_keeps_its_head_and_its_tail_within_the_limit(length, limit, gap_length):
    tokens, gap = np.arange(length, dtype=np.int32), np.full(gap_length, -1)
    cut = cut_attempt(tokens, limit, gap)
    assert cut.dtype == np.int32
    if limit is None or length <= limit:
        np.testing.assert_array_equal(cut, tokens)
        return
    assert len(cut) == limit
    kept = cut[cut >= 0]
    if limit - gap_length < 2:
        np.testing.assert_array_equal(cut, tokens[length - limit :])
        return
    head = len(kept) - len(kept) // 2
    np.testing.assert_array_equal(kept, np.concatenate([tokens[:head], tokens[length - len(kept) // 2 :]]))
    np.testing.assert_array_equal(cut[head : head + gap_length], gap)


def test_a_cut_worked_out_by_hand():
    np.testing.assert_array_equal(cut_attempt(np.arange(10, dtype=np.int32), 8, GAP), [0, 1, 2, -1, -2, -1, 8, 9])


def test_refuses_a_negative_limit():
    with pytest.raises(ValueError, match="limit"):
        cut_attempt(np.arange(3), -1, GAP)


@repeatable
@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.0, 1.0), seeds)
def test_reflection_prompts_stay_within_their_share_of_the_whole_batch(hard, plain, max_share, seed):
    uids = [f"q{index}" for index in range(hard)]
    chosen = share_limit(uids, plain, max_share, np.random.default_rng(seed))
    assert chosen == [uid for uid in uids if uid in set(chosen)], "a choice in the order given"
    assert len(chosen) == hard or max_share < 1.0
    if max_share < 1.0:
        assert len(chosen) <= max_share * (plain + len(chosen)) + 1e-6
        one_more = len(chosen) + 1
        assert len(chosen) == hard or one_more > max_share * (plain + one_more)


@pytest.mark.parametrize(
    ("plain", "max_share", "expected"),
    [(12, 0.25, 4), (16, 0.25, 5), (2, 0.6, 3), (9, 0.1, 1), (5, 0.0, 0), (1, 0.5, 1)],
)
def test_shares_that_come_out_even_are_used_up(plain, max_share, expected):
    chosen = share_limit([str(index) for index in range(30)], plain, max_share, np.random.default_rng(0))
    assert len(chosen) == expected


def test_the_choice_is_random_and_seeded():
    uids = [str(index) for index in range(20)]
    choices = [share_limit(uids, 12, 0.25, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert choices[0] == choices[1] != choices[2]


def test_a_choice_without_alternatives_draws_nothing():
    rng = np.random.default_rng(0)
    share_limit(["a"], 16, 0.25, rng)
    share_limit(["a", "b"], 1, 1.0, rng)
    assert rng.integers(2**32) == np.random.default_rng(0).integers(2**32)


@pytest.mark.parametrize(("plain", "max_share"), [(4, 1.1), (4, -0.1), (-1, 0.5)])
def test_refuses_bad_shares(plain, max_share):
    with pytest.raises(ValueError, match=r"max_share|batch_size"):
        share_limit(["a"], plain, max_share, np.random.default_rng(0))
