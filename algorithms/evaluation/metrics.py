"""The measures of answers, in training and in the command: pass@k, maj@k, lengths, and their intervals."""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from algorithms.evaluation.responses import Response
from algorithms.evaluation.votes import SameAnswer, Scale, majority_correct, weighted_majority_correct
from algorithms.rollout.types import CUT_OFF, TRUNCATED
from algorithms.utils.statistics import Score, in_points, is_number, score
from r3env.core import Reason
from r3env.grading import same_value


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate the chance that at least one of k samples is correct, from n samples of which c are.

    `1 - C(n - c, k) / C(n, k)`, in whole numbers until the last division.

    Args:
        n: samples drawn.
        c: correct ones among them.
        k: samples that the estimate is for, at most `n`.

    Raises:
        ValueError: not `0 ≤ c ≤ n` and `1 ≤ k ≤ n`.

    Source: Chen et al., arXiv 2107.03374.
    """
    if not 0 <= c <= n:
        raise ValueError(f"c must lie between 0 and n = {n}, got {c}")
    if not 1 <= k <= n:
        raise ValueError(f"k must lie between 1 and n = {n}, got {k}: draw more samples")
    draws = math.comb(n, k)
    return (draws - math.comb(n - c, k)) / draws


def mean_pass_at_k(correct: np.ndarray | Sequence[np.ndarray], k: int) -> float:
    """Average pass@k over problems.

    Args:
        correct: bool [problems, samples], or one bool [samples] per problem where sample counts differ.
        k: at most the samples of any problem.

    Raises:
        ValueError: there are no problems, a row is not one-dimensional, or a problem has fewer than `k`
            samples.
    """
    if len(correct) == 0:
        raise ValueError("pass@k needs at least one problem")
    values = []
    for row in correct:
        outcomes = np.asarray(row, dtype=bool)
        if outcomes.ndim != 1:
            raise ValueError(f"correct must be [problems, samples], got a row of shape {outcomes.shape}")
        values.append(pass_at_k(outcomes.size, int(outcomes.sum()), k))
    return math.fsum(values) / len(values)


# Decimals of the measures that are no shares: tokens, rewards, and nats per token of a supervised start.
NO_SHARES = {"mean_tokens": 1, "reward": 3, "loss": 3, "entropy": 3}
FAILED = "failed_share"
NOT_MEASURED = "–"
Metrics = dict[str, float]


def label(measure: str) -> str:
    """Return a measure's name for people."""
    return "failed, as incorrect" if measure == FAILED else measure.replace("_", " ")


def amount(value: Any, measure: str) -> str:
    """Format a measured value: in percent, unless it is no share."""
    if not is_number(value):
        return NOT_MEASURED
    return f"{value:,.{NO_SHARES[measure]}f}" if measure in NO_SHARES else f"{value:.1%}"


def difference(value: Any, measure: str) -> str:
    """Format a difference; of two shares in points, which are not percent of the first."""
    if not is_number(value):
        return NOT_MEASURED
    return f"{value:+,.{NO_SHARES[measure]}f}" if measure in NO_SHARES else f"{in_points(value):+.1f} points"


class Outcome(Protocol):
    """The measured properties of an answer."""

    @property
    def correct(self) -> bool:
        """Whether it is correct."""

    @property
    def truncated(self) -> bool:
        """Whether it is truncated."""

    @property
    def failed(self) -> bool:
        """Whether its environment, agent or grading failed: it counts as incorrect."""

    @property
    def answer(self) -> str | None:
        """The final answer in it; None where there is none, or none that counts."""

    @property
    def verdict(self) -> str:
        """The grader's reason."""

    @property
    def tokens(self) -> int:
        """Its length in tokens."""

    @property
    def reflected_correct(self) -> bool | None:
        """Whether it is correct at first or on the second attempt; None without second attempts."""


def per_problem(
    problem: Sequence[Response],
    ks: Sequence[int],
    limits: Sequence[int] = (),
    *,
    votes: bool = True,
    reads: bool = True,
    scale: Scale | None = None,
    same: SameAnswer = same_value,
) -> Metrics:
    """Return the measures of one problem, by name.

    Args:
        problem: all responses to it.
        ks: for which k pass@k is reported; pass@1 always is, and pass@2 beside second tries: what another answer that
            knew nothing of the first would have given. From 3 on maj@k too.
        limits: response limits in tokens for which the same is reported. A response that is longer would have been cut
            off there; one that is shorter would have been the same.
        votes: whether maj@k is reported.
        reads: whether the share without an answer is reported.
        scale: of the weights of the weighted majority over all answers, which is reported beside it; None: it is not.
        same: whether two incorrect answers are the same one, see `majority_correct`.
    """
    count = len(problem)
    reflected = all(response.reflected_correct is not None for response in problem)
    ks = sorted({1, *ks, *((2,) if reflected and count > 1 else ())})
    right = sum(response.correct for response in problem)
    values = {f"pass@{k}": pass_at_k(count, right, k) for k in ks}
    if votes:
        voted = [response.answer if _votes(response) else None for response in problem]
        correct = [response.correct for response in problem]
        values |= {f"maj@{k}": majority_correct(voted, correct, k, same=same) for k in ks if 2 < k < count}
        values[f"maj@{count}"] = majority_correct(voted, correct, same=same)
        if scale is not None:
            weights = scale.weights(problem)
            values[f"weighted_maj@{count}"] = weighted_majority_correct(voted, correct, weights, same=same)
    values |= _means(problem, reads=reads)
    for limit in limits:
        within = sum(response.correct and response.tokens <= limit for response in problem)
        values |= {f"pass@{k}_within_{limit}": pass_at_k(count, within, k) for k in ks}
    return values


def summarize(problems: Sequence[Sequence[Outcome]], ks: Sequence[int]) -> Metrics:
    """Return training's numbers over all problems: pass@k, lengths, shares of responses, problems, samples.

    Args:
        problems: the answers to each, equally many.
        ks: for which k pass@k is reported.
    """
    correct = [np.array([answer.correct for answer in answers]) for answers in problems]
    values = {f"pass@{k}": mean_pass_at_k(correct, k) for k in ks}
    flat = [answer for answers in problems for answer in answers]
    values |= _means(flat, reads=reads_answers(flat))
    values["failed_share"] = sum(answer.failed for answer in flat) / len(flat)
    return values | {"problems": float(len(problems)), "samples": float(len(problems[0]))}


def _means(answers: Sequence[Outcome], *, reads: bool) -> Metrics:
    count, reflected = len(answers), [answer.reflected_correct for answer in answers]
    after = {} if None in reflected else {"pass@1_after_reflection": sum(map(bool, reflected)) / count}
    return after | {
        "mean_tokens": sum(answer.tokens for answer in answers) / count,
        "truncated": sum(answer.truncated for answer in answers) / count,
        **({"no_answer": sum(answer.verdict == Reason.NO_ANSWER for answer in answers) / count} if reads else {}),
    }


def _votes(response: Response) -> bool:
    """Return whether an answer votes: not if it is truncated, nor if it was not graded."""
    return not response.truncated and not response.failed


def have_votes(responses: Sequence[Outcome]) -> bool:
    """Return whether the answers that were judged are known: not every environment has a single one to read."""
    judged = [one for one in responses if one.correct or one.verdict == Reason.DIFFERENT]
    # An episode that the context's end cuts off may have given no answer yet.
    judged = judged or [one for one in responses if one.verdict in (TRUNCATED, CUT_OFF)]
    return all(one.answer is not None for one in judged)


def reads_answers(responses: Sequence[Outcome]) -> bool:
    """Return whether an answer is read from responses, so that one may be missing; a judge of the whole reads none."""
    return have_votes(responses) or any(one.verdict == Reason.NO_ANSWER for one in responses)


def by_problem(responses: Sequence[Response], benchmark: str) -> dict[str, list[Response]]:
    """Return the responses of a benchmark by problem, in the order in which these appear."""
    problems: dict[str, list[Response]] = {}
    for response in responses:
        if response.benchmark == benchmark:
            problems.setdefault(response.uid, []).append(response)
    return problems


def benchmark_scores(
    responses: Sequence[Response],
    ks: Sequence[int],
    limits: Sequence[int] = (),
    scale: Scale | None = None,
    same: Mapping[str, SameAnswer] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Return by benchmark `problems`, `samples`, `ungraded`, `scores`, `levels` (pass@1 by level) and `by_problem`.

    With a scale also `confidence`, see `Scale.summarize`.

    Args:
        responses: of all benchmarks.
        ks: for which k pass@k is reported.
        limits: see `per_problem`.
        scale: of the answers' confidences, where they were asked for.
        same: of a benchmark, whether two incorrect answers are the same one; by default where their values are.
    """
    table = {}
    for benchmark in dict.fromkeys(response.benchmark for response in responses):
        problems = by_problem(responses, benchmark)
        flat = [response for problem in problems.values() for response in problem]
        votes, own = have_votes(flat), scale and scale.of(flat)
        reads = reads_answers(flat)
        alike = same.get(benchmark, same_value)
        measured = {
            uid: per_problem(problem, ks, limits, votes=votes, reads=reads, scale=own, same=alike)
            for uid, problem in problems.items()
        }
        table[benchmark] = {
            "problems": len(problems),
            "samples": len(flat) // len(problems),
            "ungraded": sum(response.failed for response in flat),
            "scores": _scores(list(measured.values())),
            "levels": scores_by_level(
                {uid: values["pass@1"] for uid, values in measured.items()},
                {uid: problem[0].level for uid, problem in problems.items() if problem[0].level is not None},
            ),
            "by_problem": measured,
        } | ({"confidence": own.summarize(flat)} if own else {})
    return table


def _scores(measured: Sequence[Mapping[str, float]]) -> dict[str, Score]:
    return {name: score([problem[name] for problem in measured], share=name not in NO_SHARES) for name in measured[0]}


def scores_by_level(values: Mapping[str, float], levels: Mapping[str, str]) -> dict[str, Score]:
    """Return level → score of its problems, by `natural` order.

    Args:
        values: uid → share of correct answers.
        levels: uid → level; problems without one count in none.
    """
    members: dict[str, list[float]] = {}
    for uid, value in values.items():
        if uid in levels:
            members.setdefault(levels[uid], []).append(value)
    return {level: score(members[level]) for level in sorted(members, key=natural)}


def natural(level: str) -> tuple[float, str]:
    """Sort numbers by size, before words by spelling."""
    return (float(level) if re.fullmatch(r"-?\d+(\.\d+)?", level) else float("inf")), level
