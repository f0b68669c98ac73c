"""Random streams that are functions of (run seed, step, stream): a resumed run draws what it would have drawn."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np


class RngStream(IntEnum):
    """The uses of random numbers; each has its own stream."""

    ROLLOUT = 1
    MINIBATCH = 2
    EVALUATION = 3
    REFLECTION = 4
    REPLAY = 5
    REFILL = 6
    FOLLOW_UP = 7
    SAMPLE = 8


def rng_for(seed: int, step: int, stream: int, occasion: int = 0) -> np.random.Generator:
    """Make the generator of a seed, step and stream, and of an occasion where a step has several."""
    return np.random.default_rng([seed, step, stream, occasion])


def request_seeds(seed: int, step: int, stream: int, count: int, occasion: int = 0) -> list[int]:
    """Draw one sampling seed for each of `count` requests."""
    return rng_for(seed, step, stream, occasion).integers(2**63, size=count).tolist()


def group_seeds(
    seed: int, step: int, stream: int, sizes: Sequence[int], group_size: int, occasion: int = 0
) -> list[int]:
    """Draw one sampling seed for each response of some groups, those of a group in a row.

    A group's seeds depend on its place among the groups and on no other group's size: place i has `group_size` seeds
    of the stream, and what a larger group needs beyond them comes from a stream of that place.
    """
    table = request_seeds(seed, step, stream, group_size * len(sizes), occasion)
    seeds: list[int] = []
    for place, size in enumerate(sizes):
        seeds += table[place * group_size : place * group_size + min(size, group_size)]
        if size > group_size:
            own = np.random.default_rng([seed, step, stream, occasion, place + 1])  # more numbers: a stream of its own
            seeds += own.integers(2**63, size=size - group_size).tolist()
    return seeds
