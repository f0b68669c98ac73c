"""The unbiased pass@k estimator."""

import math
from collections.abc import Sequence

import numpy as np


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
