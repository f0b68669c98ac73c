import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.history.store import ReplayEntry, ReplayHistory
from algorithms.rollout.types import Context

from .strategies import entry, repeatable, seeds


def rng(seed=0):
    return np.random.default_rng(seed)


def drawable(history, uid="q", *, correct_group, contexts="any", context=Context.PLAIN):
    """List all that could be retrieved, by asking for more than is stored."""
    return history.sample_opposite_outcomes(
        uid, correct_group=correct_group, k=10_000, contexts=contexts, context=context, rng=rng()
    )


def steps(entries):
    return sorted(entry.step for entry in entries)


def test_right_groups_get_failures_and_wrong_groups_successes():
    history = ReplayHistory()
    history.add(entry(correct=True, step=1))
    history.add(entry(correct=False, step=2))
    assert steps(drawable(history, correct_group=True)) == [2]
    assert steps(drawable(history, correct_group=False)) == [1]


def test_empty_pools_and_unknown_queries_give_nothing():
    history = ReplayHistory()
    assert drawable(history, correct_group=True) == []
    assert history.sample_failure("q", rng()) is None
    history.add(entry(correct=True))
    assert drawable(history, correct_group=True) == []
    assert drawable(history, "another", correct_group=False) == []
    assert history.sample_failure("q", rng()) is None
    assert len(history) == 1


def test_asking_for_none_gives_none():
    history = ReplayHistory()
    history.add(entry(correct=True))
    assert (
        history.sample_opposite_outcomes("q", correct_group=False, k=0, contexts="any", context="plain", rng=rng())
        == []
    )


def test_asking_leaves_no_trace():
    history = ReplayHistory()
    drawable(history, "asked", correct_group=True)
    history.mean("asked", "correct")
    history.attempts("asked")
    history.sample_failure("asked", rng())
    assert history.state_dict()[0]["query_uid_offsets"].size == 1


@repeatable
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_eviction_is_first_in_first_out_and_never_touches_the_other_pool(outcomes, capacity):
    history = ReplayHistory(capacity=capacity)
    for step, correct in enumerate(outcomes):
        history.add(entry(response=(step,), correct=correct, step=step))
    for correct in (True, False):
        added = [step for step, outcome in enumerate(outcomes) if outcome == correct]
        assert steps(drawable(history, correct_group=not correct)) == added[-capacity:]


def test_a_flood_of_failures_keeps_the_one_success():
    history = ReplayHistory(capacity=8)
    history.add(entry(response=(1,), correct=True, step=1))
    for step in range(2, 500):
        history.add(entry(response=(step,), correct=False, step=step))
    assert steps(drawable(history, correct_group=False)) == [1]
    assert len(history) == 9


def test_a_flood_of_another_context_keeps_the_plain_ones():
    history = ReplayHistory(capacity=2)
    for correct in (True, False):
        history.add(entry(response=(1,), correct=correct, step=1))
        for step in range(2, 6):
            history.add(entry(response=(step,), correct=correct, context="prefix", step=step))
    assert steps(drawable(history, correct_group=False)) == [1, 4, 5]
    assert history.sample_failure("q", rng()).step == 1
    assert len(history) == 6


def test_without_a_capacity_nothing_is_evicted():
    history = ReplayHistory(capacity=None)
    for step in range(100):
        history.add(entry(response=(step,), step=step))
    assert len(drawable(history, correct_group=True)) == 100


def test_queries_do_not_see_each_others_entries():
    history = ReplayHistory()
    history.add(entry("a", correct=True, step=1))
    history.add(entry("b", correct=True, step=2))
    assert steps(drawable(history, "a", correct_group=False)) == [1]


def test_a_repeated_response_takes_the_place_of_the_stored_one():
    history = ReplayHistory(capacity=2)
    history.add(entry(response=(1,), step=1))
    history.add(entry(response=(2,), step=2))
    history.add(entry(response=(1,), step=3))
    assert steps(drawable(history, correct_group=True)) == [2, 3]
    history.add(entry(response=(4,), step=4))
    assert steps(drawable(history, correct_group=True)) == [2, 4], "it keeps the age of the one that it replaced"


def test_only_the_same_context_and_the_same_response_tokens_are_duplicates():
    history = ReplayHistory()
    history.add(entry(response=(1, 2), step=1))
    history.add(entry(response=(1, 2), step=2, context=Context.REFLECTION))
    history.add(entry(response=(2, 1), step=3))
    history.add(entry(response=(1,), step=4))
    history.add(entry(response=(1, 2), step=5, correct=True))
    assert steps(drawable(history, correct_group=True)) == [1, 2, 3, 4]
    history.add(entry(response=(1, 2), step=6, prompt=(5, 5, 5)))
    assert steps(drawable(history, correct_group=True)) == [2, 3, 4, 6]


def test_duplicates_are_kept_where_that_is_asked_for():
    history = ReplayHistory(dedupe=False)
    for step in (1, 2, 3):
        history.add(entry(response=(1,), step=step))
    assert steps(drawable(history, correct_group=True)) == [1, 2, 3]


@repeatable
@given(st.integers(0, 8), st.integers(0, 12), seeds, st.booleans())
def test_draws_are_distinct_and_as_many_as_there_are(stored, k, seed, correct_group):
    history = ReplayHistory()
    for step in range(stored):
        history.add(entry(response=(step,), correct=not correct_group, step=step))
    drawn = history.sample_opposite_outcomes(
        "q", correct_group=correct_group, k=k, contexts="same", context="plain", rng=rng(seed)
    )
    assert len({id(one) for one in drawn}) == len(drawn) == min(k, stored)
    assert all(one.correct != correct_group for one in drawn)


@pytest.mark.parametrize("correct_group", [True, False])
def test_draws_are_uniform_whatever_the_rewards(correct_group):
    history = ReplayHistory()
    for step in range(4):
        history.add(entry(response=(step,), correct=not correct_group, step=step))
    generator, counts = rng(1), np.zeros(4)
    for _ in range(2000):
        drawn = history.sample_opposite_outcomes(
            "q", correct_group=correct_group, k=2, contexts="any", context="plain", rng=generator
        )
        counts[[one.step for one in drawn]] += 1
    np.testing.assert_allclose(counts / 2000, 0.5, atol=0.05)


@repeatable
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 8), seeds)
def test_finished_failures_come_before_truncated_ones(truncations, k, seed):
    history = ReplayHistory()
    for step, truncated in enumerate(truncations):
        history.add(entry(response=(step,), truncated=truncated, step=step))
    drawn = history.sample_opposite_outcomes(
        "q", correct_group=True, k=k, contexts="any", context="plain", rng=rng(seed)
    )
    finished = truncations.count(False)
    assert sum(not one.truncated for one in drawn) == min(k, finished)
    assert sum(one.truncated for one in drawn) == max(0, min(k, len(truncations)) - finished)


@pytest.mark.parametrize("correct_group", [True, False])
def test_contexts_limit_what_is_drawn(correct_group):
    history = ReplayHistory()
    history.add(entry(step=1, correct=not correct_group))
    history.add(entry(step=2, correct=not correct_group, context=Context.REFLECTION))

    def found(contexts, context):
        return steps(drawable(history, correct_group=correct_group, contexts=contexts, context=context))

    assert found("same", Context.PLAIN) == [1]
    assert found("same", Context.REFLECTION) == [2]
    assert found("any", Context.PLAIN) == found("any", Context.REFLECTION) == [1, 2]


def test_a_context_is_any_name():
    history = ReplayHistory()
    history.add(entry(context="hint: ünïcode"))
    (kept,) = drawable(history, correct_group=True, contexts="same", context="hint: ünïcode")
    assert kept.context == "hint: ünïcode" and type(kept.context) is str
    assert drawable(history, correct_group=True, contexts="same", context="hint") == []


def test_only_plain_failures_are_quoted_truncated_ones_as_well():
    history = ReplayHistory()
    history.add(entry(response=(1,), step=1))
    history.add(entry(response=(2,), step=2, truncated=True))
    history.add(entry(response=(3,), step=3, context=Context.REFLECTION))
    history.add(entry(response=(4,), step=4, correct=True))
    generator = rng()
    quoted = {history.sample_failure("q", generator).step for _ in range(100)}
    assert quoted == {1, 2}


def test_equal_seeds_draw_equally():
    history = ReplayHistory()
    for step in range(8):
        history.add(entry(response=(step,), step=step))
    draws = [
        [
            one.step
            for one in history.sample_opposite_outcomes(
                "q", correct_group=True, k=3, contexts="any", context="plain", rng=g
            )
        ]
        + [history.sample_failure("q", g).step]
        for g in (rng(5), rng(5))
    ]
    assert draws[0] == draws[1]


outcomes = st.lists(st.tuples(st.booleans(), st.floats(0, 2)), max_size=40)


@repeatable
@given(outcomes, st.integers(0, 10))
def test_means_are_over_the_window_and_attempts_over_all(outcomes, window):
    history = ReplayHistory(history_window=window)
    for correct, reward in outcomes:
        history.record("q", correct, reward)
    assert history.attempts("q") == len(outcomes)
    counted = outcomes[-window:] if window else outcomes
    if not outcomes:
        assert history.mean("q", "correct") is None and history.mean("q", "reward") is None
        return
    assert history.mean("q", "correct") == pytest.approx(np.mean([correct for correct, _ in counted]))
    assert history.mean("q", "reward") == pytest.approx(np.mean([reward for _, reward in counted]))


def test_statistics_count_attempts_and_not_stored_entries():
    history = ReplayHistory(capacity=1)
    history.add(entry(correct=True))
    assert history.attempts("q") == 0 and history.mean("q", "correct") is None
    for _ in range(10):
        history.record("q", False, 0.0)
    assert history.attempts("q") == 10 and history.mean("q", "correct") == 0.0
    assert len(history) == 1


def test_refuses_bad_settings_and_values():
    with pytest.raises(ValueError, match="capacity"):
        ReplayHistory(capacity=0)
    with pytest.raises(ValueError, match="history_window"):
        ReplayHistory(history_window=-1)
    history = ReplayHistory()
    with pytest.raises(ValueError, match="reward"):
        history.record("q", True, float("nan"))
    with pytest.raises(ValueError, match="statistic"):
        history.mean("q", "median")
    with pytest.raises(ValueError, match="contexts"):
        history.sample_opposite_outcomes("q", correct_group=True, k=1, contexts="other", context="plain", rng=rng())


def test_an_entry_knows_its_response_and_its_prompt():
    multi_turn = ReplayEntry(
        uid="q",
        context="reflection",
        tokens=[1, 2, 3, 4, 5, 6],
        loss_mask=[0, 0, 1, 1, 0, 1],
        old_logprobs=[-1, -2, -3],
        reward=0.0,
        correct=False,
        truncated=False,
        step=3,
    )
    assert multi_turn.prompt_length == 2
    np.testing.assert_array_equal(multi_turn.response_tokens, [3, 4, 6])
    assert multi_turn.context == Context.REFLECTION
    assert multi_turn.tokens.dtype == np.int32 and multi_turn.old_logprobs.dtype == np.float32
    assert entry(response=()).prompt_length == 2


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [1, 2]},
        {"loss_mask": [[True]]},
        {"old_logprobs": [np.nan]},
        {"reward": np.inf},
        {"old_logprobs": [0.0, -1.0]},
    ],
)
def test_a_malformed_entry_is_refused(change):
    fields = {
        "uid": "q",
        "context": "plain",
        "tokens": [1],
        "loss_mask": [True],
        "old_logprobs": [-1.0],
        "reward": 0.0,
        "correct": False,
        "truncated": False,
        "step": 1,
    }
    ReplayEntry(**fields)
    with pytest.raises(ValueError, match=r"must be \[T\]|finite"):
        ReplayEntry(**(fields | change))
