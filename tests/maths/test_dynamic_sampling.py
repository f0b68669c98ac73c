"""Which groups a step keeps, and how often it samples more."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.mechanism import Mechanism
from algorithms.grpo.rollout_source import RolloutSource
from algorithms.grpo.types import Prompt
from algorithms.rollout.types import Sampling
from tests.hand_made import answer

from .strategies import repeatable

MIXED, RIGHT, WRONG, FAILED = (0, 1), (1, 1), (0, 0), None


class Queries:
    """An epoch of queries, and workers that know their outcomes; notes what it is asked."""

    version = 0

    def __init__(self, outcomes):
        self.outcomes, self.drawn, self.asked, self.taken = list(outcomes), 0, [], {}

    def take(self, count: int, step: int, occasion: int = 0) -> list[str]:
        if occasion:
            self.asked.append((occasion, count))
        self.drawn += count
        return [str(number) for number in range(self.drawn - count, self.drawn)]

    def rollout(self, requests):
        return [self._rollout(request) for request in requests]

    def metrics(self, requests, rollouts):
        return {}

    def _rollout(self, request):
        outcomes = self.outcomes[int(request.uid) % len(self.outcomes)]
        correct, failed = bool(outcomes and outcomes[request.id % 2]), "timeout" if outcomes is None else None
        verdict = failed or "equal"
        return answer(request, prompt=[1], response=[2], correct=correct, reward=0.0, verdict=verdict, error=failed)


def collect(outcomes, wanted: int, max_resample_rounds: int, mechanisms=()):
    queries = Queries(outcomes)
    training = TrainingSettings(group_size=2, queries_per_step=wanted, max_resample_rounds=max_resample_rounds)
    batch = RolloutSource(queries, queries, mechanisms, training, Sampling(), 0).next_batch(0)
    assert batch.record["sampling/dropped_groups"] == len(batch.dropped)
    return SimpleNamespace(kept=batch.groups, dropped=batch.dropped, refills=batch.record["sampling/refills"]), queries


def test_queries_of_a_step_that_fails_come_again_when_it_is_repeated(monkeypatch):
    queries = Queries([MIXED, RIGHT, WRONG, RIGHT, MIXED, MIXED])
    training = TrainingSettings(group_size=2, queries_per_step=2, max_resample_rounds=5)
    source = RolloutSource(queries, queries, (), training, Sampling(), 0)
    rounds, rollout = [], queries.rollout

    def failing(requests):
        rounds.append(requests)
        if len(rounds) == 3:
            raise RuntimeError("no runner is left")
        return rollout(requests)

    monkeypatch.setattr(queries, "rollout", failing)
    with pytest.raises(RuntimeError):
        source.next_batch(0)
    assert queries.drawn == 2, "those of the first round, which is here"
    source.repeat(0, {})
    assert names(source.next_batch(0).groups) == [0, 4]


def names(groups):
    return [int(group.prompt.uid) for group in groups]


def test_without_refills_everything_stays_as_it_is():
    collection, queries = collect([MIXED, RIGHT, WRONG], wanted=3, max_resample_rounds=0)
    assert names(collection.kept) == [0, 1, 2] and not collection.dropped
    assert collection.refills == 0 and queries.drawn == 3


def test_a_full_step_asks_for_nothing():
    collection, queries = collect([MIXED], wanted=3, max_resample_rounds=5)
    assert names(collection.kept) == [0, 1, 2] and collection.refills == 0 and queries.drawn == 3


def test_dull_groups_are_replaced_by_those_of_the_next_queries():
    collection, queries = collect([MIXED, RIGHT, WRONG, RIGHT, MIXED, MIXED], wanted=2, max_resample_rounds=5)
    # One of two was of use: two more for the one that is missing; then one of four: the step's two and no more.
    assert queries.asked == [(1, 2), (2, 2)]
    assert names(collection.kept) == [0, 4]
    assert names(collection.dropped) == [1, 2, 3, 5], "the surplus is dropped from the end, in order"


def test_an_endless_row_of_dull_groups_ends_at_the_bound():
    collection, queries = collect([RIGHT, WRONG], wanted=4, max_resample_rounds=3)
    assert not collection.kept and len(collection.dropped) == 16
    assert queries.asked == [(1, 4), (2, 4), (3, 4)]


def test_a_bound_that_is_reached_keeps_what_there_is():
    collection, _ = collect([MIXED, RIGHT, RIGHT, RIGHT], wanted=4, max_resample_rounds=1)
    assert names(collection.kept) == [0, 4] and collection.refills == 1


def test_without_a_single_group_it_still_asks():
    collection, _ = collect([FAILED, FAILED, MIXED, MIXED], wanted=2, max_resample_rounds=2)
    assert names(collection.kept) == [2, 3] and not collection.dropped


class Again(Mechanism):
    """Ask once more for every query but the first."""

    def __init__(self):
        super().__init__(None, None)

    def follow_up(self, groups, round):
        return [Prompt(group.prompt.uid, "again") for group in groups[1:]] if round == 1 else []


def test_informative_groups_of_follow_ups_come_on_top_and_the_others_count_for_nothing():
    collection, queries = collect([RIGHT, MIXED, RIGHT, MIXED], wanted=3, max_resample_rounds=5, mechanisms=[Again()])
    contexts = [(group.prompt.uid, group.prompt.context) for group in collection.kept]
    assert contexts[:2] == [("1", "plain"), ("1", "again")]
    assert len(contexts) == 4 and {context for _, context in contexts[2:]} == {"plain"}
    assert not any(group.homogeneous for group in collection.kept)
    assert ("2", "again") in [(group.prompt.uid, group.prompt.context) for group in collection.dropped]


@repeatable
@given(st.lists(st.sampled_from([MIXED, RIGHT, WRONG]), min_size=1, max_size=9), st.integers(1, 6), st.integers(0, 5))
def test_nothing_is_lost_or_doubled_and_the_bounds_hold(outcomes, wanted, max_resample_rounds):
    collection, queries = collect(outcomes, wanted, max_resample_rounds)
    assert sorted(names(collection.kept) + names(collection.dropped)) == list(range(queries.drawn))
    assert names(collection.kept) == sorted(names(collection.kept))
    assert collection.refills <= max_resample_rounds and queries.drawn <= wanted * (1 + max_resample_rounds)
    if max_resample_rounds:
        assert len(collection.kept) <= wanted and not any(kept.homogeneous for kept in collection.kept)
        enough = len(collection.kept) == wanted
        assert enough or collection.refills == max_resample_rounds
        if not enough:
            assert all(dropped.homogeneous for dropped in collection.dropped)


@pytest.mark.parametrize("wanted", [1, 3])
def test_the_first_informative_groups_stay(wanted):
    collection, _ = collect([RIGHT, MIXED], wanted=wanted, max_resample_rounds=9)
    assert names(collection.kept) == [1, 3, 5][:wanted]
