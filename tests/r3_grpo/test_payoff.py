"""Reflection is cut down to a probe while reflected answers are no better than plain ones."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.grpo.types import Group, Prompt
from algorithms.r3_grpo.memory import to_entry
from algorithms.r3_grpo.reflection import ENOUGH, GROUPS, ReflectionGain
from algorithms.rollout.types import Attempt

from .conftest import ATTEMPT, reflected, sample

QUERIES = tuple("abcdefgh")


def observed(*pairs: tuple[float, float]) -> ReflectionGain:
    payoff = ReflectionGain()
    for pair in pairs:
        payoff.observe(*pair)
    return payoff


def test_nothing_is_concluded_from_few_groups():
    assert observed(*[(0.0, 1.0)] * (ENOUGH - 1)).pays
    assert not observed(*[(0.0, 1.0)] * ENOUGH).pays


def test_it_pays_when_reflected_answers_are_right_more_often_and_not_when_they_are_right_as_often():
    assert observed(*[(0.25, 0.125)] * ENOUGH).pays
    assert not observed(*[(0.125, 0.125)] * ENOUGH).pays


def test_only_the_newest_groups_count():
    payoff = observed(*[(1.0, 0.0)] * 100, *[(0.0, 0.125)] * GROUPS)
    assert not payoff.pays
    payoff.observe(1.0, 0.0)
    assert payoff.pays is (1.0 > 0.125 * (GROUPS - 1))


def test_what_a_checkpoint_keeps_decides_as_before():
    payoff = observed(*[(0.0, 0.5)] * ENOUGH)
    restored = ReflectionGain()
    restored.restore(payoff.state())
    assert not restored.pays
    assert restored.state() == payoff.state()


@pytest.fixture
def asking(stub):
    """Builds an algorithm for which every query is hard."""

    def make(**settings):
        algorithm = stub(training={"group_size": 2}, reflection={"max_share": 1.0, **settings})
        algorithm.truncator = SimpleNamespace(
            quote=lambda entry: Attempt(np.array([1, 2], np.int32), entry.response_tokens, entry.text)
        )
        for uid in QUERIES:
            algorithm.history.add(replace(to_entry(sample([10]), 1), uid=uid))
            for _ in range(2):
                algorithm.history.record(uid, False, 0.0)
        return algorithm

    return make


def asked_again(algorithm) -> list[str]:
    return [prompt.uid for prompt in algorithm.build_prompts(QUERIES) if prompt.attempt]


def test_one_query_a_step_is_still_asked_when_it_does_not_pay(asking):
    algorithm = asking()
    assert len(asked_again(algorithm)) == len(QUERIES)
    algorithm.payoff = observed(*[(0.0, 0.5)] * ENOUGH)
    assert len(asked_again(algorithm)) == 1
    algorithm.payoff = observed(*[(0.5, 0.0)] * ENOUGH)
    assert len(asked_again(algorithm)) == len(QUERIES)


def test_the_paper_asks_whether_it_pays_or_not(asking):
    algorithm = asking(adaptive=False)
    algorithm.payoff = observed(*[(0.0, 0.5)] * ENOUGH)
    assert len(asked_again(algorithm)) == len(QUERIES)


def test_a_step_compares_a_querys_reflected_answers_with_its_plain_ones(stub):
    algorithm = stub()
    algorithm.shape_rewards(
        [
            Group(Prompt("q"), [sample([10]), sample([11], correct=True)]),
            Group(Prompt("q", ATTEMPT), [reflected([12], correct=True), reflected([13], correct=True)]),
            Group(Prompt("other", ATTEMPT), [reflected([14])]),
        ]
    )
    assert algorithm.payoff.state() == [(1.0, 0.5)]
    assert algorithm.record["reflection/correct"] == pytest.approx(0.5)
    assert algorithm.record["reflection/pays"] == 1.0
