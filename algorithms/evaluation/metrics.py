"""The unbiased pass@k estimator."""

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithms.evaluation.responses import Response
from algorithms.utils.statistics import stratified_means
from r3env.core import Reason
from r3env.grading.normalization import clean, comparable


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


DRAWS = 1000


def majority_correct(answers: Sequence[str | None], correct: Sequence[bool], k: int | None = None) -> float:
    """The chance that the most frequent of k answers is right, where ties are broken at random.

    Right answers count as one, however they are written, for they all equal the reference; wrong ones are the same
    where they are written alike, up to spaces and the like. Samples without an answer have no vote.

    Args:
        answers: the final answer of each sample; None where there is none, or none that counts.
        correct: whether it is right.
        k: samples that vote, drawn without replacement: the mean over `DRAWS` such draws. None for all of them.

    Raises:
        ValueError: unlike lengths, or not `1 ≤ k ≤` samples.

    Source: Wang et al., arXiv 2203.11171.
    """
    if k is not None and not 1 <= k <= len(answers):
        raise ValueError(f"k must lie between 1 and {len(answers)}, got {k}: draw more samples")
    pairs = list(zip(answers, correct, strict=True))
    right = sum(map(bool, correct))
    wrong = Counter(_spelt(answer) for answer, is_right in pairs if not is_right and answer is not None)
    counts = np.array([right, *sorted(wrong.values())], np.int64)
    if k is None or k == len(answers):
        return float(_chances(counts[None]).item())
    if not right:
        return 0.0
    rng = np.random.default_rng([k, *counts.tolist()])
    silent = len(answers) - int(counts.sum())
    draws = rng.multivariate_hypergeometric([*counts.tolist(), silent], k, size=DRAWS, method="count")
    return float(_chances(draws[:, :-1]).mean())


@functools.lru_cache(4096)
def _spelt(answer: str) -> str:
    """What is compared; remembered, as every k asks for the same answers."""
    return comparable(clean(answer))


def _chances(votes: np.ndarray) -> np.ndarray:
    """Of right answers to win; float [draws].

    Args:
        votes: int [draws, 1 + wrong answers], the right answer's first.
    """
    most = votes.max(axis=1)
    winners = (votes == most[:, None]).sum(axis=1)
    return np.where((votes[:, 0] == most) & (most > 0), 1.0 / winners, 0.0)


RESAMPLES = 2000
_Z = 1.959964  # of a normal distribution, 95 % lie within
NO_SHARES = ("mean_tokens",)
UNGRADED = ("timeout", "error", "environment_error")
Problem = Sequence[Response]


@dataclass(frozen=True)
class Score:
    """A mean over problems and its 95 % interval; None below ten problems.

    Percentile bootstrap over problems. Where all problems were solved, or none, every resample is the same, and the
    interval would claim to be certain: there it is Wilson's.
    """

    mean: float
    low: float | None
    high: float | None


def per_problem(
    problem: Problem, ks: Sequence[int], limits: Sequence[int] = (), *, votes: bool = True
) -> dict[str, float]:
    """What is measured of one problem, by name.

    Args:
        problem: all responses to it.
        ks: for which k pass@k is told; pass@1 always is, and pass@2 beside second tries: what another answer that
            knew nothing of the first would have given. From 3 on maj@k too.
        limits: response limits in tokens for which the same is told. A response that is longer would have been cut
            off there; one that is shorter would have been the same.
        votes: whether maj@k is told.
    """
    count = len(problem)
    reflected = all(response.reflected_correct is not None for response in problem)
    ks = sorted({1, *ks, *((2,) if reflected and count > 1 else ())})
    right = sum(response.correct for response in problem)
    values = {f"pass@{k}": pass_at_k(count, right, k) for k in ks}
    if votes:
        voted = [response.answer if _votes(response) else None for response in problem]
        correct = [response.correct for response in problem]
        values |= {f"maj@{k}": majority_correct(voted, correct, k) for k in ks if 2 < k < count}
        values[f"maj@{count}"] = majority_correct(voted, correct)
    if reflected:
        values["pass@1_after_reflection"] = sum(bool(r.reflected_correct) for r in problem) / count
    values["mean_tokens"] = sum(response.tokens for response in problem) / count
    values["truncated"] = sum(response.truncated for response in problem) / count
    for limit in limits:
        within = sum(response.correct and response.tokens <= limit for response in problem)
        values |= {f"pass@{k}_within_{limit}": pass_at_k(count, within, k) for k in ks}
    return values


def _votes(response: Response) -> bool:
    """A box in an answer that was cut off counts for nothing; of one that was not graded nothing is known."""
    return not response.truncated and response.verdict not in UNGRADED


def have_votes(responses: Sequence[Response]) -> bool:
    """Whether the answers that were judged are known: an environment may read them from elsewhere than a box."""
    return all(one.answer is not None for one in responses if one.correct or one.verdict == Reason.DIFFERENT)


def score(values: Sequence[float], seed: int = 0, *, share: bool = True) -> Score:
    """Mean and interval of one number a problem.

    Args:
        values: one for each problem.
        seed: of the resamples.
        share: whether they are shares, from 0 to 1.

    Raises:
        ValueError: there are no problems.
    """
    if not len(values):
        raise ValueError("a score needs at least one problem")
    numbers = np.asarray(values, dtype=np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 10:
        return Score(mean, None, None)
    if share and mean in (0.0, 1.0):
        reach = _Z**2 / (len(numbers) + _Z**2)
        return Score(mean, 0.0, reach) if mean == 0.0 else Score(mean, 1.0 - reach, 1.0)
    rng = np.random.default_rng(seed)
    means = [numbers[rng.integers(len(numbers), size=len(numbers))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return Score(mean, float(low), float(high))


def mean_score(benchmarks: Sequence[Sequence[float]], *, share: bool = True) -> Score:
    """Mean over benchmarks of their means; for its interval problems are resampled within each.

    Where every problem of every benchmark was solved, or none, it is the mean of Wilson's, which is wider.

    Args:
        benchmarks: one number a problem for each of them.
        share: whether they are shares, from 0 to 1.
    """
    own = [score(values, share=share) for values in benchmarks]
    mean = sum(one.mean for one in own) / len(own)
    ends = [(one.low, one.high) for one in own if one.low is not None and one.high is not None]
    if len(ends) < len(own):
        return Score(mean, None, None)
    if share and all(one.mean in (0.0, 1.0) for one in own):
        low, high = (sum(end) / len(own) for end in zip(*ends, strict=True))
        return Score(mean, low, high)
    low, high = np.percentile(stratified_means([np.asarray(one) for one in benchmarks], RESAMPLES), [2.5, 97.5])
    return Score(mean, float(low), float(high))


def by_problem(responses: Sequence[Response], benchmark: str) -> dict[str, list[Response]]:
    """The responses of a benchmark by problem, in the order in which these appear."""
    problems: dict[str, list[Response]] = {}
    for response in responses:
        if response.benchmark == benchmark:
            problems.setdefault(response.uid, []).append(response)
    return problems


def benchmark_scores(
    responses: Sequence[Response], ks: Sequence[int], limits: Sequence[int] = ()
) -> dict[str, dict[str, Any]]:
    """By benchmark: `problems`, `samples`, `ungraded`, `scores`, `levels` (pass@1 by level) and `by_problem`.

    Args:
        responses: of all benchmarks.
        ks: for which k pass@k is told.
        limits: see `per_problem`.
    """
    table = {}
    for benchmark in dict.fromkeys(response.benchmark for response in responses):
        problems = by_problem(responses, benchmark)
        flat = [response for problem in problems.values() for response in problem]
        votes = have_votes(flat)
        measured = {uid: per_problem(problem, ks, limits, votes=votes) for uid, problem in problems.items()}
        table[benchmark] = {
            "problems": len(problems),
            "samples": len(flat) // len(problems),
            "ungraded": sum(response.verdict in UNGRADED for response in flat),
            "scores": _scores(list(measured.values())),
            "levels": _levels(problems, {uid: values["pass@1"] for uid, values in measured.items()}),
            "by_problem": measured,
        }
    return table


def _scores(measured: Sequence[Mapping[str, float]]) -> dict[str, Score]:
    return {name: score([problem[name] for problem in measured], share=name not in NO_SHARES) for name in measured[0]}


def _levels(problems: Mapping[str, Problem], values: Mapping[str, float]) -> dict[str, Score]:
    uids: dict[str, list[str]] = {}
    for uid, problem in problems.items():
        if problem[0].level is not None:
            uids.setdefault(problem[0].level, []).append(uid)
    return {
        level: score([values[uid] for uid in members])
        for level, members in sorted(uids.items(), key=lambda item: _natural(item[0]))
    }


def _natural(level: str) -> tuple[float, str]:
    """Numbers by size, before words by spelling."""
    try:
        return float(level), level
    except ValueError:
        return float("inf"), level
