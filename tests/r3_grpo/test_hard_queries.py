"""Which history makes a query hard: windows and numbers of attempts that follow from the group's size."""

import pytest

from algorithms.grpo.base import open_history
from algorithms.grpo.types import to_entry
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.r3_grpo.reflection import Reflection
from algorithms.rollout.types import Context

from .conftest import sample

GROUP_SIZE = 3


def history_of(**history):
    """The history that an algorithm opens with these settings of section `history`."""
    return open_history(R3GRPOConfig().training(group_size=GROUP_SIZE).history(**history), None)


@pytest.mark.parametrize(
    ("window", "counted"),
    [({}, 4 * GROUP_SIZE), ({"window": None}, 4 * GROUP_SIZE), ({"window": 5}, 5)],
)
def test_the_window_is_four_groups_unless_it_is_set(window, counted):
    history = history_of(**window)
    history.record("q", True, 1.0)
    for _ in range(counted - 1):
        history.record("q", False, 0.0)
    assert history.mean("q", "correct") == pytest.approx(1 / counted)
    history.record("q", False, 0.0)
    assert history.mean("q", "correct") == 0


def test_a_window_of_zero_is_all_attempts():
    history = history_of(window=0)
    history.record("q", True, 1.0)
    for _ in range(99):
        history.record("q", False, 0.0)
    assert history.mean("q", "correct") == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [({}, GROUP_SIZE), ({"min_attempts": None}, GROUP_SIZE), ({"min_attempts": 1}, 1), ({"min_attempts": 5}, 5)],
)
def test_a_query_needs_a_groups_attempts_unless_a_number_is_set(stub, settings, needed):
    algorithm = stub(training={"group_size": GROUP_SIZE}, reflection={"max_share": 1.0, **settings})
    reflection, history = algorithm.the(Reflection), algorithm.history
    history.add(to_entry(sample([10]), 1))
    prompts = []
    for _ in range(needed):
        prompts.append(len(reflection.prompts(["q"], 5)))
        history.record("q", False, 0.0)
    assert prompts == [0] * needed
    (prompt,) = reflection.prompts(["q"], 5)
    assert prompt.context == Context.REFLECTION and prompt.attempt.response_tokens.tolist() == [10]
    assert algorithm.metric("reflection/prompts") == 1
