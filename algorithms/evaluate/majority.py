"""maj@k: is the answer that most samples agree on the right one?"""

import functools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from r3env.grading.normalisation import clean, comparable

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
