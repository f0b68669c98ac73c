"""Random continuous_batching that are functions of (run seed, step, purpose): a resumed run draws what it would have drawn."""

from enum import IntEnum

import numpy as np


class RngStream(IntEnum):
    """What a stream is drawn for; each has its own."""

    ROLLOUT = 1
    MINIBATCH = 2
    EVALUATION = 3
    REFLECTION = 4
    REPLAY = 5
    REFILL = 6


def rng_for(seed: int, step: int, purpose: RngStream, occasion: int = 0) -> np.random.Generator:
    """A generator of its own for each seed, step and purpose, and each occasion where a step has several."""
    return np.random.default_rng([seed, step, purpose, occasion])


def request_seeds(seed: int, step: int, purpose: RngStream, count: int, occasion: int = 0) -> list[int]:
    """One sampling seed for each of `count` requests."""
    return rng_for(seed, step, purpose, occasion).integers(2**63, size=count).tolist()
