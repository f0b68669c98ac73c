"""Reflection is cut down to a probe while reflected answers are no better than plain ones."""

from dataclasses import replace

import pytest

from algorithms.grpo.types import Group, Prompt, to_entry
from algorithms.r3_grpo.reflection import ENOUGH, GROUPS, Reflection, ReflectionGain
from algorithms.rollout.types import Context

from .conftest import ATTEMPT, finish, plain_group, reflected, reflection_group, sample

QUERIES = tuple("abcdefgh")


def observed(*pairs: tuple[float, float]) -> ReflectionGain:
    gain = ReflectionGain()
    for pair in pairs:
        gain.observe(*pair)
    return gain


def test_nothing_is_concluded_from_few_groups():
    assert observed(*[(0.0, 1.0)] * (ENOUGH - 1)).positive
    assert not observed(*[(0.0, 1.0)] * ENOUGH).positive


def test_the_gain_is_positive_when_reflected_answers_are_right_more_often_and_not_when_they_are_right_as_often():
    assert observed(*[(0.25, 0.125)] * ENOUGH).positive
    assert not observed(*[(0.125, 0.125)] * ENOUGH).positive


def test_only_the_newest_groups_count():
    gain = observed(*[(1.0, 0.0)] * 100, *[(0.0, 0.125)] * GROUPS)
    assert not gain.positive
    gain.observe(1.0, 0.0)
    assert gain.positive is (1.0 > 0.125 * (GROUPS - 1))


def test_what_a_checkpoint_keeps_decides_as_before():
    gain = observed(*[(0.0, 0.5)] * ENOUGH)
    restored = ReflectionGain()
    restored.restore(gain.state())
    assert not restored.positive
    assert restored.state() == gain.state()


@pytest.fixture
def reflecting(stub):
    """Builds an algorithm for which every query is hard."""

    def make(**settings):
        algorithm = stub(training={"group_size": 2}, reflection={"max_share": 1.0, **settings})
        for uid in QUERIES:
            algorithm.history.add(replace(to_entry(sample([10]), 1), uid=uid))
            for _ in range(2):
                algorithm.history.record(uid, False, 0.0)
        return algorithm

    return make


def reflected_on(algorithm, queries=QUERIES) -> list[str]:
    return [prompt.uid for prompt in algorithm.the(Reflection).prompts(queries, 5) if prompt.attempt]


def test_a_query_that_a_step_has_twice_gets_one_second_turn(reflecting):
    assert reflected_on(reflecting(), [*QUERIES, QUERIES[0]]) == list(QUERIES)


def test_one_query_per_step_is_still_reflected_on_when_nothing_is_gained(reflecting):
    algorithm = reflecting()
    assert len(reflected_on(algorithm)) == len(QUERIES)
    algorithm.the(Reflection).gain = observed(*[(0.0, 0.5)] * ENOUGH)
    assert len(reflected_on(algorithm)) == 1
    algorithm.the(Reflection).gain = observed(*[(0.5, 0.0)] * ENOUGH)
    assert len(reflected_on(algorithm)) == len(QUERIES)


def test_without_adaptive_all_are_reflected_on_whatever_is_gained(reflecting):
    algorithm = reflecting(adaptive=False)
    algorithm.the(Reflection).gain = observed(*[(0.0, 0.5)] * ENOUGH)
    assert len(reflected_on(algorithm)) == len(QUERIES)


def test_outcomes_of_a_query_that_a_step_has_twice_are_pooled(stub):
    algorithm = stub()
    solved, failed = plain_group(sample([10], True), sample([11])), plain_group(sample([12]), sample([13]))
    finish(algorithm, solved, failed, reflection_group(reflected([20], True), *(reflected([n]) for n in (21, 22, 23))))
    assert algorithm.the(Reflection).gain.state() == [(0.25, 0.25)]


def test_a_step_compares_a_querys_reflected_answers_with_its_plain_ones(stub):
    algorithm = stub()
    other = Group(Prompt("other", Context.REFLECTION, attempt=ATTEMPT), [reflected([14])])
    finish(
        algorithm,
        plain_group(sample([10]), sample([11], correct=True)),
        reflection_group(reflected([12], correct=True), reflected([13], correct=True)),
        other,
    )
    assert algorithm.the(Reflection).gain.state() == [(1.0, 0.5)]
    assert algorithm.metric("reflection/correct") == pytest.approx(0.5)
    assert algorithm.metric("reflection/pays") == 1.0


def test_groups_that_dynamic_sampling_dropped_count(stub):
    algorithm = stub()
    solved = reflection_group(reflected([12], correct=True), reflected([13], correct=True))
    finish(algorithm, plain_group(sample([10]), sample([11], correct=True)), dropped=[solved])
    assert algorithm.the(Reflection).gain.state() == [(1.0, 0.5)]
