"""ISR's decisions: which queries are hard, what their reflection prompts quote, how many a batch may hold."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np


def is_hard(mean: float | None, attempts: int, *, threshold: float, min_attempts: int) -> bool:
    """Tell whether a query has failed persistently: enough attempts, and their mean below the threshold.

    Args:
        mean: the mean of the query's historical outcomes (`ReplayHistory.mean`); None without history.
        attempts: plain attempts so far.
        threshold: τ; a mean equal to it is not hard.
        min_attempts: attempts below which nothing is concluded.

    Source: ISR, arXiv 2601.19620; `min_attempts` is ours (the paper: from the second epoch on).
    """
    return mean is not None and attempts >= min_attempts and mean < threshold


def share_limit(hard: Sequence[str], batch_size: int, max_share: float, rng: np.random.Generator) -> list[str]:
    """Choose the hard queries that get a reflection prompt: at most a share of the batch, those included.

    With P plain prompts and R reflection prompts, `R ≤ max_share · (P + R)`.

    Args:
        hard: uids of the batch's hard queries.
        batch_size: P, the plain prompts of the batch.
        max_share: the share, within [0, 1]; 1 sets no limit.
        rng: draws which ones stay where there are too many; not touched otherwise.

    Returns:
        The chosen uids, in the order of `hard`.

    Raises:
        ValueError: `max_share` or `batch_size` is out of range.
    """
    if not 0.0 <= max_share <= 1.0:
        raise ValueError(f"max_share must lie within [0, 1], got {max_share}")
    if batch_size < 0:
        raise ValueError(f"batch_size must not be negative, got {batch_size}")
    if max_share == 1.0:
        return list(hard)
    # 0.6 · 2 / (1 - 0.6) is 2.9999999999999996 in floats: a whole number must not lose a prompt to rounding.
    allowed = math.floor(max_share * batch_size / (1.0 - max_share) + 1e-9)
    if len(hard) <= allowed:
        return list(hard)
    chosen = np.sort(rng.choice(len(hard), size=allowed, replace=False))
    return [hard[index] for index in chosen]


GROUPS = 32
ENOUGH = 8


class ReflectionGain:
    """Success of the newest reflection groups beside the plain groups of the same queries and steps.

    A policy may stop making use of its failed attempts, be it that it never could or that training made it forget:
    then its reflected answers cost as many tokens and teach nothing that plain ones do not.
    """

    def __init__(self) -> None:
        self._groups: deque[tuple[float, float]] = deque(maxlen=GROUPS)

    def observe(self, reflected: float, plain: float) -> None:
        """Count a query's reflection group and its plain group: the share of right answers in each."""
        self._groups.append((reflected, plain))

    @property
    def pays(self) -> bool:
        """Whether reflected answers were right more often, over the newest `GROUPS`; True before `ENOUGH` are known."""
        if len(self._groups) < ENOUGH:
            return True
        return sum(reflected for reflected, _ in self._groups) > sum(plain for _, plain in self._groups)

    def state(self) -> list[tuple[float, float]]:
        """What a checkpoint keeps, as JSON."""
        return list(self._groups)

    def restore(self, groups: Sequence[Sequence[float]]) -> None:
        """Put back what `state` gave."""
        self._groups.clear()
        self._groups.extend((reflected, plain) for reflected, plain in groups)
