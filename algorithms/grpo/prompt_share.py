"""Limits on how many prompts of a mechanism a step may have besides its plain ones."""

import math
import sys
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def most_in_share(max_share: float, batch_size: int) -> int:
    """Count the further prompts that make at most this share of a step, including them.

    With P plain prompts and R further ones, `R ≤ max_share · (P + R)`.

    Args:
        max_share: the share, within [0, 1]; 1 sets no limit.
        batch_size: P, the plain prompts of the step.

    Raises:
        ValueError: `max_share` or `batch_size` is out of range.
    """
    if not 0.0 <= max_share <= 1.0:
        raise ValueError(f"max_share must lie within [0, 1], got {max_share}")
    if batch_size < 0:
        raise ValueError(f"batch_size must not be negative, got {batch_size}")
    if max_share == 1.0:
        return sys.maxsize
    # 0.6 · 2 / (1 - 0.6) is 2.9999999999999996 in floats: a whole number must not lose a prompt to rounding.
    return math.floor(max_share * batch_size / (1.0 - max_share) + 1e-9)


def draw_at_most(wanted: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    """Draw up to this many uniformly, in their order; without a draw where there are no more."""
    if len(wanted) <= count:
        return list(wanted)
    return [wanted[index] for index in np.sort(rng.choice(len(wanted), size=count, replace=False))]
