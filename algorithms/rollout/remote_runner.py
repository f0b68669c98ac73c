"""One remote env runner as the driver sees it, and what an idle one should take from the others."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from statistics import median
from typing import Any

from algorithms.rollout.types import Request, RunnerReport, Split

# How long an `advance` lasts. Short ones cost the driver, long ones let a runner run out of work.
SHORTEST_CALL_S, LONGEST_CALL_S = 0.1, 5.0
FIRST_CALL_S = 0.25
NO_ROUND = -1
# How much the last call's speed counts for in the running mean.
NEW_SPEED = 0.5
# A runner is far behind when its sequences grow this many times slower than the typical runner's ...
FAR_BEHIND = 3.0
# ... or when it has been silent for this many of the longest calls that there were, and at least for so long.
SILENT_CALLS, SILENT_S = 3.0, 5.0


class RunnerState(Enum):
    """Whether a runner holds the current weights."""

    READY = "ready"
    STARTING = "starting"  # its process, or only its weights, are being replaced
    GONE = "gone"


@dataclass(frozen=True)
class Call:
    """An `advance`, or a ping, that was not answered yet.

    Args:
        round: the dispatch that it belongs to; NO_ROUND: nobody waits for the answer.
        given: ids of the requests that went with it.
        ping: whether it only asks for the id of the process.
        weights: the version that it brings; None: none.
    """

    round: int
    given: tuple[int, ...] = ()
    ping: bool = False
    weights: int | None = None


@dataclass(eq=False)
class RemoteRunner:
    """A runner's record.

    Args:
        number: RLlib's id of the runner.
        handle: has `advance.remote`, `set_state.remote` and `get_pid.remote`, as a Ray actor's handle has.
        spare: whether it holds weights and gets no work, until it takes the place of one that is lost.
        pid: of its process, as far as it is known.
        held: requests that the runner was given and has not answered, in the order given.
        to_withdraw: ids that another runner was faster with.
        calls: unanswered calls by their references, in the order sent.
        last_heard: when it last answered, or was called while it had nothing to answer.
        call_s: how long the next `advance` should last.
        speed: tokens a second of one sequence; None until it has generated.
        longest_call_s: the longest that an answer has taken.
        stale_in_a_row: answers with the wrong weights since the last one with the right ones.
    """

    number: int
    handle: Any
    state: RunnerState = RunnerState.READY
    spare: bool = False
    pid: int | None = None
    held: dict[int, Request] = field(default_factory=dict)
    to_withdraw: list[int] = field(default_factory=list)
    calls: dict[Any, Call] = field(default_factory=dict)
    last_heard: float = 0.0
    call_s: float = FIRST_CALL_S
    speed: float | None = None
    longest_call_s: float = 0.0
    stale_in_a_row: int = 0

    @property
    def ready(self) -> bool:
        """Whether it may be given work; a spare may not."""
        return self.state is RunnerState.READY

    @property
    def advances(self) -> int:
        """Calls that it has to answer and that bring no weights."""
        return sum(call.weights is None for call in self.calls.values())

    def take_weights(self, version: int, state: Mapping[str, Any]) -> None:
        """Have it sample with other weights from its next call on."""
        if not self.calls:
            self.last_heard = time.monotonic()
        self.calls[self.handle.set_state.remote(state)] = Call(NO_ROUND, weights=version)

    def ping(self) -> None:
        """Make it answer, so that its death shows while it has nothing to do."""
        self.last_heard = time.monotonic()
        self.calls[self.handle.get_pid.remote()] = Call(NO_ROUND, ping=True)

    def send(self, requests: Sequence[Request], round: int, longest_s: float) -> None:
        """Let it run these in addition to its present requests, and drop those that others finished first."""
        self._call(list(requests), min(self.call_s, longest_s), Call(round, tuple(request.id for request in requests)))
        self.held.update({request.id: request for request in requests})

    def dismiss(self) -> None:
        """Let it drop all its requests."""
        self.to_withdraw += self.held
        self.held.clear()
        if self.to_withdraw:
            self._call([], 0.0, Call(NO_ROUND))

    def _call(self, requests: list[Request], seconds: float, call: Call) -> None:
        if not self.calls:
            self.last_heard = time.monotonic()
        withdraw, self.to_withdraw = self.to_withdraw, []
        self.calls[self.handle.advance.remote(requests, withdraw, seconds)] = call

    def answered(self, reference: Any) -> Call:
        """Note that a call was answered; returns it."""
        now = time.monotonic()
        self.longest_call_s, self.last_heard = max(self.longest_call_s, now - self.last_heard), now
        return self.calls.pop(reference)

    def not_started(self, slots: int) -> list[int]:
        """Return the ids that it cannot have begun yet, because earlier requests take its engine's slots."""
        return list(islice(self.held, slots, None))

    def adapt(self, report: RunnerReport, slots: int, wanted: float, longest_s: float = LONGEST_CALL_S) -> None:
        """Adapt the length of calls so that each returns about `wanted` rollouts, and measure the speed."""
        count = len(report.rollouts)
        if count > wanted:
            self.call_s = max(SHORTEST_CALL_S, self.call_s / 2)
        elif count < wanted / 2:
            self.call_s = min(max(LONGEST_CALL_S, longest_s), self.call_s * 1.5)
        at_once = min(report.unfinished + count, slots)
        if at_once and report.engine_seconds > 0 and report.generated_tokens:
            speed = report.generated_tokens / report.engine_seconds / at_once
            self.speed = speed if self.speed is None else self.speed + NEW_SPEED * (speed - self.speed)


@dataclass(frozen=True)
class StealPlan:
    """Requests that go from one runner to another.

    Args:
        victim: who holds them.
        requests: what the receiver is given.
        shared: whether the victim has begun and continues: the first result wins. Otherwise it drops them.
    """

    victim: RemoteRunner
    requests: tuple[Request, ...]
    shared: bool


def plan_steal(
    receiver: RemoteRunner,
    runners: Sequence[RemoteRunner],
    slots: int,
    moved: Collection[int],
    now: float,
    *,
    copies: bool = True,
) -> StealPlan | None:
    """Plan what a runner with free slots takes: half of the longest queue elsewhere, else copies of stragglers.

    Args:
        receiver: has fewer than `slots` requests.
        runners: all that are ready.
        slots: sequences that an engine decodes at once.
        moved: ids that were taken or copied before: none leaves a queue twice, and none has two copies.
        now: monotonic seconds.
        copies: whether what has begun is copied in training. Copies under other weights are other answers, of which
            the one that ends first would be the shorter one more often.
    """
    room, others = slots - len(receiver.held), [runner for runner in runners if runner is not receiver]
    waiting = [(runner, _without(runner.not_started(slots), moved, receiver)) for runner in others]
    victim, ids = max(waiting, key=lambda entry: len(entry[1]) / (entry[0].speed or 1.0), default=(receiver, []))
    if ids:
        # From the end: the victim would have come to these last. Half, so that the next idle one finds some too.
        taken = ids[-min(room, -(-len(ids) // 2)) :]
        return StealPlan(victim, tuple(victim.held[key] for key in taken), shared=False)
    if receiver.held:
        return None
    for victim in others:
        if not victim.held or not far_behind(victim, runners, now):
            continue
        elsewhere = {key for runner in others if runner is not victim for key in runner.held}
        begun = [key for key, request in victim.held.items() if copies or request.split is Split.EVALUATION]
        if ids := _without(begun, elsewhere.union(receiver.to_withdraw), receiver):
            return StealPlan(victim, tuple(victim.held[key] for key in ids[:room]), shared=True)
    return None


def far_behind(runner: RemoteRunner, runners: Sequence[RemoteRunner], now: float) -> bool:
    """Return whether a runner is much slower than is typical, or silent for longer than calls take."""
    speeds = [other.speed for other in runners if other is not runner and other.speed]
    slow = bool(speeds) and runner.speed is not None and runner.speed * FAR_BEHIND < median(speeds)
    longest = max(other.longest_call_s for other in runners)
    return slow or now - runner.last_heard > max(SILENT_S, SILENT_CALLS * longest)


def _without(ids: Sequence[int], others: Collection[int], receiver: RemoteRunner) -> list[int]:
    return [key for key in ids if key not in others and key not in receiver.held]
