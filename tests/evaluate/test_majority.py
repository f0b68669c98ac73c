"""maj@k against counts by hand."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from algorithms.evaluation.metrics import benchmark_scores
from algorithms.evaluation.responses import Response
from algorithms.evaluation.votes import MOST_COMPARED, majority_correct, merge, weighted_majority_correct
from r3env.envs.mixture import MixtureEnv
from r3env.envs.tools import ToolEnv


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([("5", True), ("10/2", True), ("6", False)], 1.0),  # right answers are one, however written
        ([("5", True), ("6", False)], 0.5),  # a tie is a coin
        ([("5", True), ("6", False), ("7", False)], 1 / 3),
        ([(None, False), (None, False), ("5", True)], 1.0),  # no answer, no vote
        ([(None, False)], 0.0),
        ([("6", False), ("6.", False), ("5", True)], 0.0),
    ],
)
def test_a_majority_is_of_answers_and_not_of_spellings(answers, expected):
    assert majority_correct([a for a, _ in answers], [c for _, c in answers]) == pytest.approx(expected)


def test_of_some_of_the_answers_it_is_the_mean_over_subsets():
    answers, correct = ["1", "1", "3", "3", "4", None, "1"], [True, True, False, False, False, False, True]
    subsets = list(itertools.combinations(range(7), 4))
    exact = sum(majority_correct([answers[i] for i in s], [correct[i] for i in s]) for s in subsets) / len(subsets)
    drawn = majority_correct(answers, correct, 4)
    assert drawn == pytest.approx(exact, abs=0.05) and drawn != pytest.approx(majority_correct(answers, correct))
    assert majority_correct(answers, correct, 4) == drawn, "the same draws each time"
    assert majority_correct(answers, correct, 7) == majority_correct(answers, correct)
    with pytest.raises(ValueError, match="draw more samples"):
        majority_correct(answers, correct, 8)


ANSWERED = [Response("b", "u", None, n, "p", "r", "7", True, False, "equal", 4) for n in range(2)]
WRONG = [Response("b", "u", None, n, "p", "r", "42", False, False, "different", 4) for n in range(2, 5)]


@pytest.mark.parametrize(
    "changed", [{"truncated": True}, {"verdict": "timeout"}, {"verdict": "error"}, {"verdict": "environment_error"}]
)
def test_what_was_cut_off_or_not_graded_has_no_vote(changed):
    def share(wrong):
        (one,) = benchmark_scores([*ANSWERED, *wrong], ks=[1, 2, 3]).values()
        return {name: value.mean for name, value in one["scores"].items() if name.startswith("maj@")}

    assert share(WRONG)["maj@5"] == 0.0
    silent = share([replace(one, **changed) for one in WRONG])
    assert silent["maj@5"] == 1.0
    assert list(silent) == ["maj@3", "maj@5"] and 0.8 < silent["maj@3"] < 1, "one subset of ten has no vote"


HALVES = ["1/2", "0.5", r"\frac{1}{2}"]
ROOTS = [r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", "2^{-1/2}"]  # for the grader's processes


@pytest.mark.parametrize("wrong", [HALVES, ROOTS, ["50%", "0.5", "1/2"], ["x+1", "1+x", "(x+1)"]])
def test_incorrect_answers_are_one_however_they_are_written_as_correct_ones_are(wrong):
    answers, correct = ["5", "10/2", *wrong], [True, True, False, False, False]
    assert majority_correct(answers, correct) == 0.0
    assert majority_correct(answers[:-1], correct[:-1]) == 0.5, "two against two"
    assert majority_correct(["5", "10/2", wrong[0], "7", "8"], correct) == 1.0, "those that differ do not add up"
    assert weighted_majority_correct(answers, correct, [0.5, 0.4, 0.4, 0.4, 0.4]) == 0.0
    responses = [
        Response("b", "u", None, n, "p", "r", answer, right, False, "equal" if right else "different", 4)
        for n, (answer, right) in enumerate(zip(answers, correct, strict=True))
    ]
    (one,) = benchmark_scores(responses, ks=[1]).values()
    assert one["scores"]["maj@5"].mean == 0.0


def test_what_cannot_be_compared_in_time_is_an_answer_of_its_own():
    slow = ["9^{9^9}", "9^{9^{9}}+0", "9^{9^{8+1}}"]
    assert majority_correct(["5", "10/2", *slow], [True, True, False, False, False]) == 1.0


def test_only_the_most_frequent_spellings_are_compared():
    asked = []

    def same(first, second):
        asked.append((first, second))
        return False

    answers = [f"a_{{{number}}}" for number in range(MOST_COMPARED + 20)]
    names = merge([*answers, answers[-1]], same)
    assert len(asked) == MOST_COMPARED * (MOST_COMPARED - 1) // 2 and set(names.values()) == set(answers)
    assert any(answers[-1] in pair for pair in asked), "it came twice"


def test_each_environment_says_which_answers_are_the_same(tmp_path):
    mixture = MixtureEnv({"sums": {"id": "r3env/Math-v0"}, "words": {"id": "r3env/ReasoningGym-v0"}})
    same = {name: part.same_answer for name, part in mixture.parts.items()}
    assert same["sums"]("ab", "ba"), "a product"
    assert not same["words"]("ab", "ba") and same["words"]("ab", " ab")
    with_tools = SimpleNamespace(task=mixture.parts["sums"])
    assert ToolEnv.same_answer(with_tools, "1/2", "0.5") and not ToolEnv.same_answer(with_tools, "1/2", "2")
    anagrams = [
        Response("words", "u", None, n, "p", "r", answer, answer == "tac", False, "equal", 4)
        for n, answer in enumerate(["tac", "tac", "cat", "act", "atc"])
    ]
    votes = {
        name: benchmark_scores(anagrams, ks=[1], same=given)["words"]["scores"]["maj@5"].mean
        for name, given in (("environment", same), ("numbers", {}))
    }
    assert votes == {"environment": 1.0, "numbers": 0.0}
