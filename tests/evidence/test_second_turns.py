"""Failed problems that are asked again in four ways."""

import numpy as np
import pytest

from algorithms.rollout.types import Attempt, Sampling
from benchmarks.second_turns import BARE, prompts, requests, table


def attempt(number):
    return Attempt(np.array([number]), np.array([10 + number]), f"text {number}", f"feedback {number}")


def quoted(prompt):
    kept = prompt.attempt
    return kept and (*kept.prompt_tokens, *kept.response_tokens, kept.text, kept.feedback)


def test_the_ways_differ_in_what_they_quote_alone():
    ways = prompts(["a", "b"], [attempt(1), attempt(2)])
    assert [[prompt.uid for prompt in own] for own in ways.values()] == [["a", "b"]] * 4
    assert [[quoted(prompt) for prompt in own] for own in ways.values()] == [
        [None, None],
        [(1, 12, "text 2", ""), (2, 11, "text 1", "")],
        [(1, 11, "text 1", ""), (2, 12, "text 2", "")],
        [(1, 11, "text 1", "feedback 1"), (2, 12, "text 2", "feedback 2")],
    ]
    with pytest.raises(ValueError, match="at least two"):
        prompts(["a"], [attempt(1)])


def test_every_answer_has_a_seed_of_its_own():
    ways = prompts(["a", "b"], [attempt(1), attempt(2)])
    made = [requests(own, 3, Sampling(), 0, occasion) for occasion, own in enumerate(ways.values(), 1)]
    assert [request.prompt.uid for request in made[0]] == ["a"] * 3 + ["b"] * 3
    assert len({request.seed for own in made for request in own}) == 24


def test_differences_are_to_the_bare_question():
    found = {BARE: dict.fromkeys("abcdefghij", 0.25), "behind its own": dict.fromkeys("abcdefghij", 0.5)}
    assert table(found).splitlines()[2:] == [
        f"| {BARE} | 25.0 % |  |",
        "| behind its own | 50.0 % | +25.0 [+25.0, +25.0] |",
    ]
