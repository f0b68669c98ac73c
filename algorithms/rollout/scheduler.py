"""Share requests out to env runners and collect every rollout, whichever runner dies meanwhile."""

import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from algorithms.rollout.remote_runner import Call, RemoteRunner, plan_steal
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import Request, Rollout, RunnerReport, Split

# A call should bring this share of the headroom: a runner hears from the driver four times before it runs out of work.
CALL_SHARE = 0.25
# When nothing waits any more, runners come back sooner: what they hold may go to another one.
LAST_CALLS_S = 1.0
# An answer costs the driver about a millisecond of CPU, however many rollouts it brings: all runners together give no
# more of them a second than this, but for those that have much to report.
ANSWERS_A_SECOND = 16
STEAL_EVERY_S = 0.25
# Lengths drift with the policy: a response counts for at least this much of the mean, so that old ones fade.
LEAST_WEIGHT = 0.1


@dataclass(frozen=True)
class DispatchPlan:
    """How work is cut for one kind of engine.

    Args:
        slots: sequences that an engine decodes at once.
        capacity: requests that a runner holds at most: its batch and what is to follow.
        calls: calls that it may have to answer at a time.
        pieces: it is given this part of its even share of what waits.
    """

    slots: int
    capacity: int
    calls: int
    pieces: int

    @classmethod
    def of(cls, *, continuous_batching: bool, max_num_seqs: int) -> "DispatchPlan":
        """Return how to feed an engine.

        With continuous batching a runner holds half a batch in reserve, and its next call waits there while the present
        one runs: it never waits for the driver. Without, a batch comes and goes as a whole, cut in two at least: the
        second pieces even out how long the first ones took.
        """
        if continuous_batching:
            return cls(max_num_seqs, max_num_seqs + max(1, max_num_seqs // 2), calls=2, pieces=1)
        return cls(max_num_seqs, max_num_seqs, calls=1, pieces=2)

    @property
    def rollouts_a_call(self) -> float:
        """Return how many rollouts a call should bring, so that a runner does not run out of work in between."""
        return max(1.0, CALL_SHARE * (self.capacity - self.slots))


@dataclass
class DispatchReport:
    """What has happened to requests, beside their rollouts.

    Args:
        stale: rollouts thrown away because their weights were not the current ones.
        requeued: requests that a lost runner held and another one ran.
        stolen: requests that an idle runner took, or ran a copy of.
        seconds: wall time.
        engine_seconds: what all engines spent generating.
        grading: what the graders of each runner's process have counted, by the runner's number.
        metrics: what callbacks in runners have logged, a report each.
    """

    stale: int = 0
    requeued: int = 0
    stolen: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    grading: dict[int, Mapping[str, int]] = field(default_factory=dict)
    metrics: list[dict[Split, Any]] = field(default_factory=list)


class Dispatch:
    """Requests that wait, are held by one runner or by two, or have ended.

    Whoever calls its methods holds the supervisor's lock.

    Args:
        supervisor: the runners.
        plan: how many requests each gets.
        copies: whether an idle runner repeats what a straggler has begun in training, too.

    Attributes:
        missing: of each request that has not ended, by its id, the version of the weights when it was added; nothing
            older may sample it.
        report: what has happened so far.
    """

    def __init__(self, supervisor: WorkerSupervisor, plan: DispatchPlan, *, copies: bool = True) -> None:
        self.supervisor, self.plan, self.copies = supervisor, plan, copies
        self.missing: dict[int, int] = {}
        self.report = DispatchReport()
        self._ended: list[Rollout] = []
        self._waiting: deque[Request] = deque()
        self._least = 1
        self._shared: dict[int, tuple[RemoteRunner, RemoteRunner]] = {}
        self._steal_at = 0.0

    def begin(self) -> None:
        """Forget what runners were given before; missing requests wait again."""
        self.supervisor.begin_round()
        given = self.supervisor.take_orphans()
        for runner in self.supervisor.ready():
            given += runner.held.values()
            runner.dismiss()
        self._requeue(given)

    def add(self, requests: Sequence[Request], *, first: bool = False) -> None:
        """Accept requests; their ids must not be those of missing ones.

        Args:
            requests: in the order in which to begin.
            first: whether they begin before those that wait.
        """
        self.missing |= dict.fromkeys((request.id for request in requests), self.supervisor.version)
        if first:
            self._waiting.extendleft(reversed(requests))
        else:
            self._waiting.extend(requests)
        # A batch engine's shares must not shrink with what waits, to batches of one.
        shares = self.supervisor.places * self.plan.pieces
        self._least = math.ceil(len(requests) / shares) if self.plan.pieces > 1 else 1

    def cancel(self, ids: Collection[int]) -> None:
        """Forget requests, wherever they are."""
        for key in ids:
            self.missing.pop(key, None)
            self._shared.pop(key, None)
        self._waiting = deque(request for request in self._waiting if request.id in self.missing)
        for runner in self.supervisor.ready():
            for key in [key for key in runner.held if key not in self.missing]:
                del runner.held[key]
                runner.to_withdraw.append(key)

    def dismiss(self) -> None:
        """Let runners drop what they still hold, such as what others have finished."""
        for runner in self.supervisor.ready():
            runner.dismiss()

    def turn(self, poll_s: float, longest_call_s: float | None = None) -> list[Rollout]:
        """Send waiting requests, receive answers for a while, and return the rollouts that have ended.

        Args:
            poll_s: how long to wait for an answer.
            longest_call_s: how long a call may last while requests wait; None: as long as the runner's calls do.
        """
        self._requeue(self.supervisor.take_orphans())
        self._assign(math.inf if longest_call_s is None else longest_call_s)
        for runner, call, report in self.supervisor.poll(poll_s):
            self._take(runner, call, report)
        ended, self._ended = self._ended, []
        return ended

    def _requeue(self, orphans: Sequence[Request]) -> None:
        """Put first in line what a lost runner held, unless another one runs it too."""
        if not orphans:
            return
        waiting = {request.id for request in self._waiting}  # both holders of a copy may be lost at once
        for request in reversed(orphans):
            holders = self._shared.pop(request.id, ())
            covered = request.id not in self.missing or any(request.id in holder.held for holder in holders)
            if not covered and request.id not in waiting:
                waiting.add(request.id)
                self._waiting.appendleft(request)
                self.report.requeued += 1

    def _assign(self, longest_call_s: float) -> None:
        """Give the runners that take calls their share of what waits, or what can be stolen for them."""
        free = [runner for runner in self.supervisor.ready() if runner.advances < self.plan.calls]
        last_calls_s = max(LAST_CALLS_S, self.supervisor.places / ANSWERS_A_SECOND)
        longest = max(longest_call_s, last_calls_s) if self._waiting else last_calls_s
        assigned = self._shares(free) if self._waiting else self._steals(free)
        for runner in free:
            requests = assigned.get(runner.number, [])
            if requests or runner.held or runner.to_withdraw:
                runner.send(requests, self.supervisor.round, longest)

    def _shares(self, free: Sequence[RemoteRunner]) -> dict[int, list[Request]]:
        """Share out what waits one by one, so that no runner gets all the long ones."""
        shares: dict[int, list[Request]] = {runner.number: [] for runner in free}
        share = math.ceil(len(self._waiting) / (max(1, len(self.supervisor.ready())) * self.plan.pieces))
        room = {runner.number: min(max(share, self._least), self.plan.capacity - len(runner.held)) for runner in free}
        takers = [number for number, most in room.items() if most > 0]
        while takers and self._waiting:
            for number in islice(takers, len(self._waiting)):
                request = self._waiting.popleft()
                if request.id in self.missing:
                    shares[number].append(request)
            takers = [number for number in takers if len(shares[number]) < room[number]]
        return shares

    def _steals(self, free: Sequence[RemoteRunner]) -> dict[int, list[Request]]:
        """Nothing waits: let runners with free slots take over what others hold."""
        now = time.monotonic()
        if now < self._steal_at:
            return {}
        self._steal_at = now + STEAL_EVERY_S
        return {runner.number: self._steal(runner, now) for runner in free if len(runner.held) < self.plan.slots}

    def _steal(self, receiver: RemoteRunner, now: float) -> list[Request]:
        runners = self.supervisor.ready()
        found = plan_steal(receiver, runners, self.plan.slots, self._shared, now, copies=self.copies)
        if found is None:
            return []
        for request in found.requests:
            self._shared[request.id] = (found.victim, receiver)
            receiver.held[request.id] = request  # so that the next receiver sees it
            if not found.shared:
                del found.victim.held[request.id]
                found.victim.to_withdraw.append(request.id)
        self.report.stolen += len(found.requests)
        return list(found.requests)

    def _take(self, runner: RemoteRunner, call: Call, report: RunnerReport) -> None:
        """Keep what a runner has finished, and withdraw it from a runner that has it too."""
        self.report.engine_seconds += report.engine_seconds
        self.report.grading[runner.number] = report.grading
        self.report.metrics += [report.metrics] if report.metrics else []
        if found := {rollout.weights_version for rollout in report.rollouts if self._is_stale(rollout)}:
            self.report.stale += len(report.rollouts)
            if runner.ready:  # not lost or found out already
                self.supervisor.give_weights_again(runner, found)
            return
        longest = self.supervisor.places / ANSWERS_A_SECOND
        runner.adapt(report, self.plan.slots, self.plan.rollouts_a_call, longest)
        for rollout in report.rollouts:
            runner.held.pop(rollout.request_id, None)
            if self.missing.pop(rollout.request_id, None) is not None:
                self._ended.append(rollout)
                self._withdraw(rollout.request_id, runner)
        if report.unfinished == 0 and runner.held:
            self._requeue_vanished(runner)
        if report.rollouts:
            self.supervisor.progressed()
            runner.stale_in_a_row = 0

    def _is_stale(self, rollout: Rollout) -> bool:
        """Return whether weights have sampled it that the runner should not have had."""
        first, found = self.missing.get(rollout.request_id), rollout.weights_version
        # Of one that has ended elsewhere nothing is known: older weights may have begun it.
        return found > self.supervisor.version or (first is not None and found < first)

    def _withdraw(self, key: int, winner: RemoteRunner) -> None:
        for holder in self._shared.pop(key, ()):
            if holder is not winner and holder.ready:
                holder.held.pop(key, None)
                holder.to_withdraw.append(key)

    def _requeue_vanished(self, runner: RemoteRunner) -> None:
        """A runner that has nothing left cannot hold what answered calls brought it: it died and came back unseen."""
        on_the_way = {key for call in runner.calls.values() for key in call.given}
        vanished = [key for key in runner.held if key not in on_the_way]
        self._requeue([runner.held.pop(key) for key in vanished])


class ExpectedLengths:
    """Running means of response lengths by query and context.

    A long response that starts last keeps one sequence running while all engines wait, so the longest start first.
    What this forgets in a restart changes the order of the requests only, never what is sampled.
    """

    def __init__(self) -> None:
        self._means: dict[tuple[str, str], tuple[int, float]] = {}

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Take in the lengths of rollouts; one that failed does not count."""
        for rollout in rollouts:
            if rollout.error is None:
                key = (rollout.uid, rollout.context)
                count, mean = self._means.get(key, (0, 0.0))
                weight = max(1.0 / (count + 1), LEAST_WEIGHT)
                self._means[key] = (count + 1, mean + weight * (rollout.response_length - mean))

    def expected(self, request: Request) -> float:
        """Return the tokens to expect; infinity for a query that was never seen: it might be the longest."""
        return self._means.get((request.uid, request.context), (0, math.inf))[1]

    def longest_first(self, requests: Sequence[Request]) -> list[Request]:
        """Return the requests by expected length; those that expect the same stay in their order."""
        return sorted(requests, key=self.expected, reverse=True)
