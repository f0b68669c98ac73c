"""Which groups a step keeps, and how often it asks for more."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.grpo.rollout_source import refilled
from algorithms.grpo.types import Group, Prompt, Sample

from .strategies import repeatable

MIXED, RIGHT, WRONG = (0, 1), (1, 1), (0, 0)


def group(number: int, outcomes: tuple[int, ...]) -> Group:
    samples = [Sample(SimpleNamespace(correct=bool(outcome)), reward=float(outcome)) for outcome in outcomes]
    return Group(Prompt(str(number)), samples)


class Queries:
    """An epoch of queries whose outcomes are known; notes what it is asked."""

    def __init__(self, outcomes):
        self.outcomes, self.position, self.asked = list(outcomes), 0, []

    def take(self, count: int, refill: int = 0) -> list[Group]:
        if refill:
            self.asked.append((refill, count))
        numbers = range(self.position, self.position + count)
        self.position += count
        return [group(n, self.outcomes[n % len(self.outcomes)]) for n in numbers]


def collect(outcomes, wanted: int, max_resample_rounds: int):
    queries = Queries(outcomes)
    collection = refilled(
        queries.take(wanted),
        queries.take,
        lambda group: not group.homogeneous,
        wanted=wanted,
        max_resample_rounds=max_resample_rounds,
    )
    return collection, queries


def names(groups):
    return [int(group.prompt.uid) for group in groups]


def test_without_refills_everything_stays_as_it_is():
    collection, queries = collect([MIXED, RIGHT, WRONG], wanted=3, max_resample_rounds=0)
    assert names(collection.kept) == [0, 1, 2] and not collection.dropped
    assert collection.refills == 0 and queries.position == 3


def test_a_full_step_asks_for_nothing():
    collection, queries = collect([MIXED], wanted=3, max_resample_rounds=5)
    assert names(collection.kept) == [0, 1, 2] and collection.refills == 0 and queries.position == 3


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
    queries = Queries([MIXED])
    collection = refilled([], queries.take, lambda group: True, wanted=2, max_resample_rounds=2)
    assert names(collection.kept) == [0, 1]


@repeatable
@given(st.lists(st.sampled_from([MIXED, RIGHT, WRONG]), min_size=1, max_size=9), st.integers(1, 6), st.integers(0, 5))
def test_nothing_is_lost_or_doubled_and_the_bounds_hold(outcomes, wanted, max_resample_rounds):
    collection, queries = collect(outcomes, wanted, max_resample_rounds)
    assert sorted(names(collection.kept) + names(collection.dropped)) == list(range(queries.position))
    assert names(collection.kept) == sorted(names(collection.kept))
    assert collection.refills <= max_resample_rounds and queries.position <= wanted * (1 + max_resample_rounds)
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
