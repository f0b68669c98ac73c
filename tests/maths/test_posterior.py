"""The posterior sampler: counts, draws, and what it does not count."""

from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.methods import posterior
from algorithms.methods.posterior import PosteriorSampler, PosteriorSettings
from algorithms.rollout.types import Context

UIDS = [f"q{number}" for number in range(8)]


class Services(SimpleNamespace):
    def rng(self, name, step, occasion=0):
        return np.random.default_rng([ord(name[0]), step, occasion])


def sampler(**settings) -> PosteriorSampler:
    return PosteriorSampler(PosteriorSettings(**settings), Services(uids=UIDS))


def group(uid, *outcomes, context=Context.PLAIN, replayed=()):
    samples = [Sample(SimpleNamespace(correct=bool(outcome)), reward=float(outcome)) for outcome in outcomes]
    samples += [Sample(SimpleNamespace(correct=bool(one)), reward=float(one), replayed=True) for one in replayed]
    return Group(Prompt(uid, context), samples)


def counts(one, uid):
    index = UIDS.index(uid)
    return one.a[index], one.b[index]


def test_correct_and_incorrect_answers_are_counted_those_of_dropped_groups_included():
    one = sampler()
    one.update_history(StepBatch(0, groups=[group("q1", 1, 1, 0, 0)], dropped=[group("q2", 0, 0, 0, 0)]))
    assert counts(one, "q1") == (3, 3) and counts(one, "q2") == (1, 5) and counts(one, "q0") == (1, 1)
    assert one.metrics == {"posterior/mean": pytest.approx((6 * 0.5 + 0.5 + 1 / 6) / 8), "posterior/mixed": 0.5}


def test_replayed_and_reflected_answers_are_not_counted():
    one = sampler()
    groups = [group("q1", 0, 0, replayed=(1, 1)), group("q2", 1, 1, context=Context.REFLECTION)]
    one.update_history(StepBatch(0, groups=groups))
    assert counts(one, "q1") == (1, 3) and counts(one, "q2") == (1, 1)
    assert one.metrics["posterior/mixed"] == 0, "the group was homogeneous before replay"


def test_a_querys_counts_are_scaled_when_it_is_sampled_again_and_all_counts_by_each_step(monkeypatch):
    monkeypatch.setattr(posterior, "MEMORY", 0.5)
    monkeypatch.setattr(posterior, "FORGETTING", 0.25)
    one = sampler()
    for _ in range(2):
        one.update_history(StepBatch(0, groups=[group("q1", 1, 1, 1, 0)]))
    assert counts(one, "q1") == pytest.approx((1 + 3 * 0.75 * 0.5 + 3, 1 + 1 * 0.75 * 0.5 + 1))
    one.update_history(StepBatch(0))
    assert counts(one, "q1")[0] == pytest.approx(1 + (3 * 0.75 * 0.5 + 3) * 0.75)


def decided(**settings) -> PosteriorSampler:
    """One that is sure: q0 always fails, q1 never, q2 is even, q3 is solved one time in ten, others fail."""
    one = sampler(**settings)
    one.a[:], one.b[:] = 1.0, 1e6
    one.a[1], one.b[1] = 1e6, 1.0
    one.a[2], one.b[2] = 1e6, 1e6
    one.a[3], one.b[3] = 1e5, 9e5
    return one


@pytest.mark.parametrize(
    ("settings", "first"), [({}, ["q2", "q3"]), ({"score": "target", "target": 0.1}, ["q3", "q0"])]
)
def test_the_queries_with_the_largest_score_are_taken(settings, first):
    taken = decided(**settings).choose(2, 0)
    assert taken[0] == first[0] and (taken[1] == first[1] or settings), "near 0 all those that fail are alike"
    assert "q1" not in taken


def test_draws_are_thompsons_one_p_for_each_query_from_its_beta():
    one = sampler()
    one.a[:3], one.b[:3] = [5, 2, 1], [2, 5, 7]
    p = np.random.default_rng([ord("p"), 4, 1]).beta(one.a, one.b)
    expected = [UIDS[index] for index in np.argsort(-p * (1 - p), kind="stable")[:3]]
    assert one.choose(3, 4, 1) == expected
    assert sampler().choose(3, 4) != sampler().choose(3, 5)


def test_no_query_comes_twice_in_a_step_if_there_are_enough():
    one = sampler()
    for step in range(5):
        taken = [uid for occasion, count in enumerate([3, 3, 2]) for uid in one.take(count, step, occasion)]
        assert sorted(taken) == UIDS
    assert one.drawn == 40
    assert sorted(one.choose(16, 9)) == sorted(UIDS * 2), "from the start again where there are fewer"


@pytest.mark.parametrize("lag", [1, 3])
def test_with_a_lag_further_rounds_do_not_bring_back_a_steps_own_queries(lag):
    one = sampler()
    own = {step: one.take(3, step) for step in range(lag)}
    for step in range(5):
        own[step + lag] = one.take(3, step + lag)
        assert sorted(own[step] + one.take(3, step, 1) + one.take(2, step, 2)) == UIDS
        one.taken.pop(step)


def test_a_step_that_is_made_again_takes_the_same_queries():
    one = sampler()
    taken = [one.take(3, 0), one.take(3, 0, 1)]
    assert [one.take(3, 0), one.take(3, 0, 1)] == taken and set(taken[0]).isdisjoint(taken[1])


def test_the_state_restores_the_counts_and_those_of_other_data_start_anew():
    one, other = sampler(), sampler()
    one.update_history(StepBatch(0, groups=[group("q1", 1, 0)]))
    arrays, state = one.state()
    other.restore(arrays, state)
    assert counts(other, "q1") == counts(one, "q1") != (1, 1)
    one.update_history(StepBatch(1, groups=[group("q1", 1, 0)]))
    assert counts(other, "q1") != counts(one, "q1"), "the arrays are its own"
    fresh = sampler()
    fresh.restore({"a": np.ones(3), "b": np.ones(3)}, {})
    fresh.restore({}, {})
    assert (fresh.a == 1).all() and len(fresh.a) == len(UIDS)
