"""What an idle runner should take from the others when nothing waits any more. Pure: no Ray."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from algorithms.rollout.remote_runner import RemoteRunner
from algorithms.rollout.types import Request, Rollout

# A runner is far behind when its sequences grow this many times slower than the typical runner's ...
FAR_BEHIND = 3.0
# ... or when it has been silent for this many of the longest calls that there were, and at least for so long.
SILENT_CALLS, SILENT_S = 3.0, 5.0


@dataclass(frozen=True)
class StealPlan:
    """Requests that change hands.

    Args:
        victim: who holds them.
        requests: what the receiver is given.
        copied: whether the victim has begun and goes on: the first result wins. Else it is told to forget them.
    """

    victim: RemoteRunner
    requests: tuple[Request, ...]
    copied: bool


def plan_steal(
    receiver: RemoteRunner, runners: Sequence[RemoteRunner], slots: int, copies: Collection[int], now: float
) -> StealPlan | None:
    """What a runner with free slots should take: half of what waits longest elsewhere, else copies of stragglers.

    Args:
        receiver: has fewer than `slots` requests.
        runners: all that are ready.
        slots: sequences that an engine decodes at once.
        copies: ids that two runners hold already; nothing is copied twice.
        now: monotonic seconds.
    """
    room, others = slots - len(receiver.held), [runner for runner in runners if runner is not receiver]
    waiting = [(runner, _without(runner.not_started(slots), copies, receiver)) for runner in others]
    victim, ids = max(waiting, key=lambda entry: len(entry[1]) / (entry[0].speed or 1.0), default=(receiver, []))
    if ids:
        # From the end: the victim would have come to these last. Half, so that the next idle one finds some too.
        taken = ids[-min(room, -(-len(ids) // 2)) :]
        return StealPlan(victim, tuple(victim.held[key] for key in taken), copied=False)
    if receiver.held:
        return None
    for victim in others:
        ids = _without(list(victim.held), copies, receiver)
        if ids and far_behind(victim, runners, now):
            return StealPlan(victim, tuple(victim.held[key] for key in ids[:room]), copied=True)
    return None


def far_behind(runner: RemoteRunner, runners: Sequence[RemoteRunner], now: float) -> bool:
    """Whether a runner is much slower than is typical, or silent for longer than calls take."""
    speeds = [other.speed for other in runners if other is not runner and other.speed]
    slow = bool(speeds) and runner.speed is not None and runner.speed * FAR_BEHIND < median(speeds)
    longest = max(other.longest_call_s for other in runners)
    return slow or now - runner.last_heard > max(SILENT_S, SILENT_CALLS * longest)


def _without(ids: Sequence[int], copies: Collection[int], receiver: RemoteRunner) -> list[int]:
    return [key for key in ids if key not in copies and key not in receiver.held]


# Lengths drift with the policy: a response counts for at least this much of the mean, so that old ones fade.
LEAST_WEIGHT = 0.1

Key = tuple[str, str]


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
        return self._means.get((request.uid, request.context), (0, math.inf))[1]

    def longest_first(self, requests: Sequence[Request]) -> list[Request]:
        """Requests by expected length; those that expect the same stay in their order."""
        return sorted(requests, key=self.expected, reverse=True)
