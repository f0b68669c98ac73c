"""Accept requests and return rollouts while the learners work, and weights change meanwhile."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from algorithms.rollout.scheduler import Dispatch, DispatchPlan, DispatchReport
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import OnProgress, Request, Rollout

# The driver gets to the runners between two polls, and runners to new weights between two calls.
POLL_S = 0.05
LONGEST_CALL_S = 1.0
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


class RolloutStream:
    """An endless dispatch in its own thread, which holds the supervisor's lock while it calls runners.

    Args:
        supervisor: the runners.
        plan: how many requests each gets.
    """

    def __init__(self, supervisor: WorkerSupervisor, plan: DispatchPlan) -> None:
        self._supervisor = supervisor
        self._dispatch = Dispatch(supervisor, plan, LONGEST_CALL_S)
        self._keys = itertools.count()
        self._owners: dict[int, Ticket] = {}
        self._changed = threading.Condition()
        self._added = threading.Event()
        self._wanted = 0
        self._error: BaseException | None = None
        self._closed = False
        self._counted_from = time.perf_counter()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def runners_to_itself(self) -> Iterator[None]:
        """Keep the thread, and whoever looks after idle runners, from the runners."""
        self._wanted += 1  # by the driver's thread alone; a lock knows no turns
        try:
            with self._supervisor.lock:
                yield
        finally:
            self._wanted -= 1

    def add(self, requests: Sequence[Request], *, first: bool = False) -> Ticket:
        """Begin to roll out.

        Args:
            requests: in the order in which to begin.
            first: whether they begin before those that wait.
        """
        keys = list(itertools.islice(self._keys, len(requests)))
        ticket = Ticket(dict(zip(keys, (request.id for request in requests), strict=True)))
        with self.runners_to_itself():
            self._owners |= dict.fromkeys(keys, ticket)
            renamed = [replace(request, id=key) for key, request in zip(keys, requests, strict=True)]
            self._dispatch.add(renamed, first=first)
        self._added.set()
        self._go_on()
        return ticket

    def collect(self, ticket: Ticket, on_progress: OnProgress | None = None) -> list[Rollout]:
        """Wait for the rollouts of requests that were added together; return them sorted by request id.

        Raises:
            NoEnvRunnerLeft: no runner answers, and none has come back in time.
            StaleWeights: a runner keeps sampling with other weights.
        """
        self._go_on()
        seen = 0
        with self._changed:
            while len(ticket.rollouts) < len(ticket.ids):
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                self._changed.wait(LOOK_EVERY_S)
                if on_progress and len(ticket.rollouts) > seen:
                    seen = len(ticket.rollouts)
                    on_progress(seen, len(ticket.ids))
        return sorted(ticket.rollouts, key=lambda rollout: rollout.request_id)

    def cancel(self, ticket: Ticket) -> None:
        """Drop requests that were added together."""
        with self.runners_to_itself():
            self._dispatch.cancel(ticket.ids)
            for key in ticket.ids:
                self._owners.pop(key, None)

    def take_report(self) -> DispatchReport:
        """Return what has happened since the last call, without the rollouts."""
        with self.runners_to_itself():
            report, self._dispatch.report = self._dispatch.report, DispatchReport()
            now = time.perf_counter()
            report.seconds, self._counted_from = now - self._counted_from, now
        return report

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _go_on(self) -> None:
        """Start the thread, unless it runs: an error ends it, until somebody asks again."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        resting = True
        try:
            while not self._closed:
                if self._wanted:
                    time.sleep(GIVE_WAY_S)
                elif self._dispatch.missing:
                    self._turn(first=resting)
                    resting = False
                else:
                    resting = True
                    self._added.wait(LOOK_EVERY_S)
                    self._added.clear()
        except BaseException as error:  # raised again by `collect`
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _turn(self, *, first: bool) -> None:
        """Call runners and hand out what they answer; time in which nobody has called them counts for nothing."""
        with self._supervisor.lock:
            if first:
                self._dispatch.begin()
            self._dispatch.turn(POLL_S)
            ended, self._dispatch.report.rollouts = self._dispatch.report.rollouts, []
        if not ended:
            return
        with self._changed:
            for rollout in ended:
                ticket = self._owners.pop(rollout.request_id, None)
                if ticket is not None:
                    own = ticket.ids[rollout.request_id]
                    ticket.rollouts.append(replace(rollout, request_id=own))
            self._changed.notify_all()
