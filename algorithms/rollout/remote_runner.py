"""One remote env runner as the driver sees it: what it holds, the calls it has not answered, how fast it is."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any

from algorithms.rollout.types import Request, RunnerReport

# How long an `advance` lasts. Short ones cost the driver, long ones let a runner run out of work.
SHORTEST_CALL_S, LONGEST_CALL_S = 0.1, 5.0
FIRST_CALL_S = 0.25
# How much the last call's speed counts for in the running mean.
NEW_SPEED = 0.5


class RunnerState(Enum):
    """Whether a runner can be given work."""

    READY = "ready"
    STARTING = "starting"  # its process, or only its weights, are being replaced
    GONE = "gone"


@dataclass(frozen=True)
class Call:
    """An `advance` that was not answered yet.

    Args:
        round: the dispatch that it belongs to.
        given: ids of the requests that went with it.
    """

    round: int
    given: tuple[int, ...]


@dataclass(eq=False)
class RemoteRunner:
    """A runner's record.

    Args:
        number: RLlib's id of the runner.
        handle: has `advance.remote` and `set_state.remote`, as a Ray actor's handle has.
        held: requests that the runner was given and has not answered, in the order given.
        to_withdraw: ids that another runner was faster with.
        calls: unanswered calls by their references, in the order sent.
        last_heard: when it last answered, or was asked while it had nothing to answer.
        call_s: how long the next `advance` should last.
        speed: tokens a second of one sequence; None until it has generated.
        longest_call_s: the longest that an answer has taken.
        stale_in_a_row: answers with the wrong weights since the last one with the right ones.
    """

    number: int
    handle: Any
    state: RunnerState = RunnerState.READY
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
        """Whether it can be given work."""
        return self.state is RunnerState.READY

    def send(self, requests: Sequence[Request], round: int, longest_s: float) -> None:
        """Ask it to play these beside what it holds, and to forget what others were faster with."""
        self._call(list(requests), min(self.call_s, longest_s), Call(round, tuple(request.id for request in requests)))
        self.held.update({request.id: request for request in requests})

    def dismiss(self) -> None:
        """Ask it to forget all that it holds."""
        self.to_withdraw += self.held
        self.held.clear()
        if self.to_withdraw:
            self._call([], 0.0, Call(-1, ()))

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
        """Ids of what it cannot have begun yet: its engine's slots are taken by what it was given before."""
        return list(islice(self.held, slots, None))

    def learn(self, report: RunnerReport, slots: int, wanted: float, longest_s: float = LONGEST_CALL_S) -> None:
        """Adapt the length of calls so that each brings about `wanted` rollouts, and measure the speed."""
        count = len(report.rollouts)
        if count > wanted:
            self.call_s = max(SHORTEST_CALL_S, self.call_s / 2)
        elif count < wanted / 2:
            self.call_s = min(max(LONGEST_CALL_S, longest_s), self.call_s * 1.5)
        at_once = min(report.unfinished + count, slots)
        if at_once and report.engine_seconds > 0 and report.generated_tokens:
            speed = report.generated_tokens / report.engine_seconds / at_once
            self.speed = speed if self.speed is None else self.speed + NEW_SPEED * (speed - self.speed)
