"""maj@k against counts by hand."""

import itertools
from dataclasses import replace

import pytest

from algorithms.evaluation.metrics import benchmark_scores, majority_correct
from algorithms.evaluation.responses import Response


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
