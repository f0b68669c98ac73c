"""What a base is taught, and what counts as correct."""

import pytest

from benchmarks.suite import protocol as registered
from benchmarks.suite.bases import Pupil, Spec

PROTOCOL, _ = registered.read()
LIMITS = PROTOCOL.filter.model_copy(update={"training": 8, "held_out": 4})
SPEC = Spec("spell_backward", "own_failures", 0)


@pytest.fixture(scope="module")
def pupil():
    return Pupil(SPEC, LIMITS)


def test_a_base_is_never_shown_a_problem_that_it_is_tested_on(pupil):
    shown = {pupil.tokenizer.decode(pupil.example(0.0).prompt) for _ in range(50)}
    assert not any(question in text for text in shown for question in pupil.kept_from_it)


def test_an_answer_counts_as_in_the_environment(pupil):
    entry = pupil.development.entries[0]
    for text, right in ((entry["answer"], True), (entry["answer"] + "x", False)):
        response = pupil._answered(text)
        assert pupil._is_right(pupil.development, entry, response) == right
        assert not pupil._is_right(pupil.development, entry, response[:-1]), "cut off"


def test_second_turns_show_its_own_wrong_answers_and_then_the_right_one(pupil):
    pupil.fail(4)
    assert pupil.failures  # a model of random weights
    example = pupil.example(1.0)
    prompt, attempt, answer = next(one for one in pupil.failures if example.prompt[: len(one[0])] == one[0])
    assert example.prompt[len(prompt) :][: len(attempt)] == attempt
    assert example.response == pupil._answered(answer)
