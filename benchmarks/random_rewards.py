"""Embedded problems whose answers get seeded random scores, so that a random model has something to learn from."""

import zlib
from typing import Any

import gymnasium

from r3env.core import Query, Reason, Verdict
from r3env.envs.math import MathEnv

RANDOM_REWARDS_ID = "benchmarks.random_rewards:RandomRewards-v0"


class RandomRewards(MathEnv):
    """Every response gets a score between 0 and 1, whatever it says.

    A model with random weights is never correct. All advantages are then 0, and there is no backward pass to measure.
    Its responses are also truncated, which makes a correct one incorrect but leaves a score as it is.
    """

    def __init__(self, reward_seed: int = 0, **arguments: Any) -> None:
        """Make the environment.

        Args:
            reward_seed: Another seed scores the same responses differently.
            arguments: Of `MathEnv`.
        """
        super().__init__(**arguments)
        self.reward_seed = reward_seed

    def verify(self, query: Query, response: str) -> Verdict:
        """Score by the bits of seed, query and response."""
        drawn = zlib.crc32(f"{self.reward_seed}/{query.uid}/{response}".encode("utf-8", "replace"))
        return Verdict(False, Reason.DIFFERENT, score=drawn / 0xFFFFFFFF)


gymnasium.register("RandomRewards-v0", RandomRewards)
