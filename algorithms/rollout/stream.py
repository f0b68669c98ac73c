"""Run requests and hand out their rollouts, either while the caller waits or ahead of the learners."""

import atexit
import contextlib
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import ray

from algorithms.rollout.lost_runners import WorkersClosed
from algorithms.rollout.scheduler import Dispatch, DispatchPlan, DispatchReport
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import OnProgress, Request, Rollout

# How long a turn may wait for an answer: while somebody waits for rollouts, and ahead. There the driver gets to the
# runners between two turns, and runners get to new weights between two calls.
POLL_S, POLL_AHEAD_S = 0.5, 0.05
LONGEST_CALL_AHEAD_S = 1.0
GIVE_WAY_S = 0.002
LOOK_EVERY_S = 0.2
STOP_S = 5.0


@dataclass(eq=False)
class Ticket:
    """Requests that were added together.

    Args:
        ids: the requests' own ids, by those that they have in the stream.
        rollouts: that have ended.
    """

    ids: dict[int, int]
    rollouts: list[Rollout] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every request has ended."""
        return len(self.rollouts) == len(self.ids)


class RolloutStream:
    """Runs requests on a pool of runners, in training and in evaluations.

    Synchronous rollouts are a stream with nothing ahead: requests run while `collect` waits for them, in its thread.
    Ahead, a thread runs them as soon as they are added, and holds the supervisor's lock while it calls runners. That
    thread also replaces lost runners while nothing is rolled out. It ends with `close`, the stream, Ray or the process.

    Args:
        supervisor: the runners.
        plan: how many requests each gets.
        ahead: whether requests run before they are waited for.
    """

    def __init__(self, supervisor: WorkerSupervisor, plan: DispatchPlan, *, ahead: bool = False) -> None:
        self.ahead = ahead
        self.dispatch = Dispatch(supervisor, plan, copies=not ahead)  # weights change under what runs ahead
        self._supervisor = supervisor
        self._keys = itertools.count()
        self._owners: dict[int, Ticket] = {}
        self._changed = threading.Condition()
        self._added, self._closed = threading.Event(), threading.Event()
        self._wanted = 0
        self._error: BaseException | None = None
        self._halted, self._rested = False, True
        self._counted_from = time.perf_counter()
        self._thread: threading.Thread | None = None
        self._end_thread: Callable[[], None] | None = None

    def start_thread(self) -> None:
        """Start the thread that rolls out ahead and looks after remote runners."""
        arguments = (weakref.ref(self), self._added, self._closed)
        thread = threading.Thread(target=_run_steps, args=arguments, name="rollouts", daemon=True)
        thread.start()
        self._thread = thread
        self._end_thread = functools.partial(_end_thread, thread, self._added, self._closed)
        atexit.register(self._end_thread)  # before Ray's own: the thread must not call it then

    @contextlib.contextmanager
    def runners_to_itself(self) -> Iterator[None]:
        """Keep the thread from the runners."""
        self._wanted += 1  # by the driver's thread alone; a lock knows no turns
        try:
            with self._supervisor.lock:
                yield
        finally:
            self._wanted -= 1

    def add(self, requests: Sequence[Request], *, first: bool = False) -> Ticket:
        """Take requests.

        Args:
            requests: in the order in which to begin.
            first: whether they begin before those that wait.
        """
        keys = list(itertools.islice(self._keys, len(requests)))
        ticket = Ticket(dict(zip(keys, (request.id for request in requests), strict=True)))
        with self.runners_to_itself():
            self._owners |= dict.fromkeys(keys, ticket)
            renamed = [replace(request, id=key) for key, request in zip(keys, requests, strict=True)]
            self.dispatch.add(renamed, first=first)
        self._resume()
        return ticket

    def collect(self, ticket: Ticket, on_progress: OnProgress | None = None) -> list[Rollout]:
        """Return the rollouts of requests that were added together, sorted by request id, when all have ended.

        Raises:
            NoEnvRunnerLeft: no runner answers, and none has come back in time.
            StaleWeights: a runner keeps sampling with other weights.
            WorkersClosed: ahead, the thread that rolls out has ended.
        """
        (self._wait_for if self.ahead else self._run_to_end)(ticket, on_progress)
        return sorted(ticket.rollouts, key=lambda rollout: rollout.request_id)

    def cancel(self, ticket: Ticket) -> None:
        """Drop requests that were added together."""
        with self.runners_to_itself():
            self.dispatch.cancel(ticket.ids)
            for key in ticket.ids:
                self._owners.pop(key, None)

    def take_report(self) -> DispatchReport:
        """Return what has happened since the last call."""
        with self.runners_to_itself():
            report, self.dispatch.report = self.dispatch.report, DispatchReport()
            now = time.perf_counter()
            if self.ahead:
                report.seconds, self._counted_from = now - self._counted_from, now
        return report

    def close(self) -> None:
        """End the thread."""
        if self._end_thread is not None:
            self._end_thread()
            atexit.unregister(self._end_thread)

    def _run_to_end(self, ticket: Ticket, on_progress: OnProgress | None) -> None:
        poll_s = POLL_S if on_progress else self._supervisor.longest_poll_s
        started = time.perf_counter()
        with self.runners_to_itself():
            self.dispatch.begin()
            try:
                while not ticket.complete:
                    if self._turn(poll_s) and on_progress:
                        on_progress(len(ticket.rollouts), len(ticket.ids))
            finally:
                self.dispatch.dismiss()
                self.dispatch.report.seconds += time.perf_counter() - started

    def _wait_for(self, ticket: Ticket, on_progress: OnProgress | None) -> None:
        self._resume()
        seen = 0
        with self._changed:
            while not ticket.complete:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                if self._thread is None or not self._thread.is_alive():
                    raise WorkersClosed("the thread that rolls out has ended")
                self._changed.wait(LOOK_EVERY_S)
                if on_progress and len(ticket.rollouts) > seen:
                    seen = len(ticket.rollouts)
                    on_progress(seen, len(ticket.ids))

    def _resume(self) -> None:
        """Wake the thread; an error halts it until somebody adds or waits again."""
        self._halted = False
        self._added.set()

    def _step(self) -> bool:
        """Do the thread's next piece of work; return whether there was none."""
        if self.ahead and self._wanted:
            time.sleep(GIVE_WAY_S)
            return False
        if self.ahead and self.dispatch.missing and not self._halted:
            with self._errors_kept():
                self._turn_ahead()
            return False
        self._rested = True
        if self._supervisor.lock.acquire(blocking=False):
            with self._errors_kept():
                try:
                    self._supervisor.attend()
                finally:
                    self._supervisor.lock.release()
        return True

    @contextlib.contextmanager
    def _errors_kept(self) -> Iterator[None]:
        """Keep what the thread's work raises for `collect`, which raises it again."""
        try:
            yield
        except BaseException as error:
            with self._changed:
                self._error, self._halted, self._rested = error, True, True
                self._changed.notify_all()

    def _turn_ahead(self) -> None:
        """Take a turn; time in which nobody has called the runners counts for nothing."""
        with self._supervisor.lock:
            if self._rested:
                self.dispatch.begin()
                self._rested = False
            self._turn(POLL_AHEAD_S, LONGEST_CALL_AHEAD_S)

    def _turn(self, poll_s: float, longest_call_s: float | None = None) -> int:
        """Call runners, and hand out what they answer; returns how many episodes have ended."""
        ended = self.dispatch.turn(poll_s, longest_call_s)
        with self._changed:
            for rollout in ended:
                ticket = self._owners.pop(rollout.request_id, None)
                if ticket is not None:
                    ticket.rollouts.append(replace(rollout, request_id=ticket.ids[rollout.request_id]))
            self._changed.notify_all()
        return len(ended)


def _run_steps(reference: "weakref.ref[RolloutStream]", added: threading.Event, closed: threading.Event) -> None:
    """Run the thread's steps while there are a stream and Ray: a call would start a Ray of its own."""
    while not closed.is_set() and ray.is_initialized() and (stream := reference()) is not None:
        rests = stream._step()
        del stream
        if rests:
            added.wait(LOOK_EVERY_S)
            added.clear()


def _end_thread(thread: threading.Thread, added: threading.Event, closed: threading.Event) -> None:
    closed.set()
    added.set()
    thread.join(STOP_S)
