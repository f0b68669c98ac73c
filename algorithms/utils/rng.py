"""Random streams that are functions of (run seed, step, stream): a resumed run draws what it would have drawn."""

from enum import IntEnum

import numpy as np


class RngStream(IntEnum):
    """What is drawn; each has a stream of its own."""

    ROLLOUT = 1
    MINIBATCH = 2
    EVALUATION = 3
    REFLECTION = 4
    REPLAY = 5
    REFILL = 6
    FOLLOW_UP = 7


def rng_for(seed: int, step: int, stream: int, occasion: int = 0) -> np.random.Generator:
    """Make the generator of a seed, step and stream, and of an occasion where a step has several."""
    return np.random.default_rng([seed, step, stream, occasion])


def request_seeds(seed: int, step: int, stream: int, count: int, occasion: int = 0) -> list[int]:
    """Draw one sampling seed for each of `count` requests."""
    return rng_for(seed, step, stream, occasion).integers(2**63, size=count).tolist()
