"""How long a response will probably be, from those that the query got before. Pure: no Ray."""

import math
from collections.abc import Sequence

from algorithms.rollout.types import Context, Request, Rollout

# Lengths drift with the policy: a response counts for at least this much of the mean, so that old ones fade.
LEAST_WEIGHT = 0.1

Key = tuple[str, Context]


class ExpectedLengths:
    """Running means of response lengths by query and context.

    A long response that starts last keeps one sequence running while all engines wait, so the longest start first.
    What this forgets in a restart changes the order of play only, never what is drawn.
    """

    def __init__(self) -> None:
        self._means: dict[Key, tuple[int, float]] = {}

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Take in the lengths of rollouts; one that failed says nothing."""
        for rollout in rollouts:
            if rollout.error is None:
                key = (rollout.uid, rollout.context)
                count, mean = self._means.get(key, (0, 0.0))
                weight = max(1.0 / (count + 1), LEAST_WEIGHT)
                self._means[key] = (count + 1, mean + weight * (rollout.response_length - mean))

    def expected(self, request: Request) -> float:
        """Tokens to expect; infinity for a query that was never seen: it might be the longest."""
        context = Context.PLAIN if request.attempt is None else Context.REFLECTION
        return self._means.get((request.uid, context), (0, math.inf))[1]

    def longest_first(self, requests: Sequence[Request]) -> list[Request]:
        """Requests by expected length; those that expect the same stay in their order."""
        return sorted(requests, key=self.expected, reverse=True)
