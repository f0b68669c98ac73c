"""Majority votes: which answers are the same one, and the chance that the most frequent one is correct."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from algorithms.evaluation.responses import Response
from algorithms.utils.statistics import area_under_curve
from r3env.grading import same_value
from r3env.grading.normalization import clean, comparable

DRAWS = 1000
MOST_COMPARED = 32  # spellings of a problem's incorrect answers that are compared with one another

# Whether two incorrect answers are the same; None where that could not be found out in time.
SameAnswer = Callable[[str, str], bool | None]


def majority_correct(
    answers: Sequence[str | None], correct: Sequence[bool], k: int | None = None, *, same: SameAnswer = same_value
) -> float:
    """Return the chance that the most frequent of k answers is correct, where ties are broken at random.

    Correct answers count as one, however they are written, for they all equal the reference; so do incorrect ones that
    are the same, see `merge`. Samples without an answer have no vote.

    Args:
        answers: the final answer of each sample; None where there is none, or none that counts.
        correct: whether it is correct.
        k: samples that vote, drawn without replacement: the mean over `DRAWS` such draws. None for all of them.
        same: whether two incorrect answers are the same one.

    Raises:
        ValueError: unlike lengths, or not `1 ≤ k ≤` samples.

    Source: Wang et al., arXiv 2203.11171.
    """
    if k is not None and not 1 <= k <= len(answers):
        raise ValueError(f"k must lie between 1 and {len(answers)}, got {k}: draw more samples")
    if not any(correct):
        return 0.0  # however the others are merged
    votes = Counter(_votes(answers, correct, same))
    silent, right = votes.pop(None, 0), votes.pop(True, 0)
    counts = np.array([right, *sorted(votes.values())], np.int64)
    if k is None or k == len(answers):
        return float(_chances(counts[None]).item())
    rng = np.random.default_rng([k, *counts.tolist()])
    draws = rng.multivariate_hypergeometric([*counts.tolist(), silent], k, size=DRAWS, method="count")
    return float(_chances(draws[:, :-1]).mean())


def weighted_majority_correct(
    answers: Sequence[str | None],
    correct: Sequence[bool],
    weights: Sequence[float],
    *,
    same: SameAnswer = same_value,
) -> float:
    """Return the chance that the answer of the greatest weight is correct; votes and ties as in `majority_correct`.

    Where no answer has a weight, all have the same.

    Args:
        answers: the final answer of each sample; None where there is none, or none that counts.
        correct: whether it is correct.
        weights: of each sample, at least 0.
        same: whether two incorrect answers are the same one.

    Source: LaSeR, arXiv 2510.14943.
    """
    if not any(correct):
        return 0.0
    votes: dict[str | bool, float] = {True: 0.0}
    silent = not any(weight > 0 for answer, weight in zip(answers, weights, strict=True) if answer is not None)
    for vote, weight in zip(_votes(answers, correct, same), weights, strict=True):
        if vote is not None:
            votes[vote] = votes.get(vote, 0.0) + (1.0 if silent else weight)
    return float(_chances(np.array([list(votes.values())])).item())


def _votes(answers: Sequence[str | None], correct: Sequence[bool], same: SameAnswer) -> list[str | bool | None]:
    """Return what each sample votes for: True, the correct answer; an incorrect one by its name; None, nothing."""
    pairs = list(zip(answers, correct, strict=True))
    names = merge([answer for answer, is_correct in pairs if answer is not None and not is_correct], same)
    return [True if is_correct else None if answer is None else names[answer] for answer, is_correct in pairs]


def merge(answers: Sequence[str], same: SameAnswer) -> Mapping[str, str]:
    r"""Name each answer by one of its spellings: `1/2`, `0.5` and `\frac{1}{2}` are one answer.

    Spellings that differ in spaces and the like are one anyway. Of the others the `MOST_COMPARED` most frequent are
    compared by `same`, each with one spelling of every answer found so far. What cannot be compared in time stays an
    answer of its own, and so do rarer ones.

    Args:
        answers: incorrect ones, with repetitions.
        same: whether two spellings are the same answer.
    """
    spelt = {answer: comparable(clean(answer)) for answer in sorted(set(answers), reverse=True)}
    written = {spelling: answer for answer, spelling in spelt.items()}  # the first in order
    counts = Counter(spelt[answer] for answer in answers)
    ordered = sorted(counts, key=lambda spelling: (-counts[spelling], spelling))
    names = _merged(tuple(written[spelling] for spelling in ordered[:MOST_COMPARED]), same)
    return {answer: names.get(written[spelling], written[spelling]) for answer, spelling in spelt.items()}


@functools.lru_cache(4096)  # every k has the same answers
def _merged(spellings: tuple[str, ...], same: SameAnswer) -> Mapping[str, str]:
    """Return of each spelling the first one that is the same answer."""
    names: dict[str, str] = {}
    for spelling in spellings:
        names[spelling] = spelling
        for other in dict.fromkeys(names.values()):
            found = other != spelling and same(other, spelling)
            if found:
                names[spelling] = other
            if found is not False:
                break
    return names


def _chances(votes: np.ndarray) -> np.ndarray:
    """Return the chance of correct answers to win; float [draws].

    Args:
        votes: [draws, 1 + incorrect answers], the correct answer's first.
    """
    most = votes.max(axis=1)
    winners = (votes == most[:, None]).sum(axis=1)
    return np.where((votes[:, 0] == most) & (most > 0), 1.0 / winners, 0.0)


@dataclass(frozen=True)
class Scale:
    """From log-probs to confidences: `beta · (log-prob - reference)`.

    Args:
        reference: the log-prob whose confidence is 0; None: their mean.
    """

    beta: float
    reference: float | None = None

    def of(self, responses: Sequence[Response]) -> "Scale":
        """Return the scale of these responses, with a reference."""
        known = [one.asked_logprob for one in responses if one.asked_logprob is not None]
        return self if self.reference is not None else replace(self, reference=float(np.mean(known or [0.0])))

    def confidence(self, logprob: float) -> float:
        """Return the confidence of a log-prob."""
        return self.beta * (logprob - (self.reference or 0.0))

    def weights(self, responses: Sequence[Response]) -> list[float]:
        """Return the weight of each answer's vote: its confidence within 0 and 1; 0 where it was not measured."""
        logprobs = [one.asked_logprob for one in responses]
        return [0.0 if value is None else min(1.0, max(0.0, self.confidence(value))) for value in logprobs]

    def summarize(self, responses: Sequence[Response]) -> dict[str, float]:
        """Return `asked` (answers), `auc` (`area_under_curve`), and the mean confidences, `correct` and `incorrect`.

        Answers that were not graded do not count.
        """
        asked = [one for one in responses if one.asked_logprob is not None and not one.failed]
        found = np.array([self.confidence(one.asked_logprob or 0.0) for one in asked])
        correct = np.array([one.correct for one in asked], bool)
        means = {
            name: float(found[own].mean()) if own.any() else 0.0
            for name, own in (("correct", correct), ("incorrect", ~correct))
        }
        return {"asked": float(len(asked)), "auc": area_under_curve(found, correct), **means}
