"""Supervise remote env runners that die, hang, raise and return: calls, health, weights, spares."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from algorithms.rollout.lost_runners import (
    RETRY_S,
    GivenUp,
    LostRunners,
    RunnerRestart,
    StaleWeights,
    Weights,
    WorkersClosed,
    describe,
    kill_process,
)
from algorithms.rollout.remote_runner import Call, RemoteRunner, RunnerState
from algorithms.rollout.types import Request, RunnerReport

# How long the start of a runner may take, model and engine included, if its deadline for answers is shorter.
START_S = 600.0
MOST_STALE = 3
GRADING_COUNTS_TIMEOUT_S = 2.0
# Runners without work are pinged this often, and all together no more often than fifty times a second.
PING_EVERY_S, PINGS_A_SECOND = 1.0, 50.0

_logger = logging.getLogger(__name__)


@dataclass
class SupervisorCounts:
    """The number of faults so far."""

    restarts: int = 0
    hung: int = 0


class WorkerSupervisor:
    """All remote runners. Those that are ready hold the weights of `version`.

    A runner is lost when a call of its raises, when its process dies, or when it has not answered for `timeout_s`. It
    is started again, gets the current weights, and is ready; the others continue meanwhile. If a spare is ready, it
    takes the place at once, and who comes back is a spare.

    Whoever calls runners, through this or by himself, holds `lock` as long: between rollouts the thread of
    `RolloutStream` does.

    Args:
        handles: a Ray actor, or what has its `advance`, `set_state` and `get_pid`, by the runner's number.
        timeout_s: how long a runner may take to answer.
        weights: the version and the `set_state` argument that a runner gets when it comes back; None while they cannot
            be had.
        kill: ends a handle's process so that it starts anew.
        on_health: called when a runner is lost (False) or back (True).
        spares: numbers of runners that may still be starting, and only take the places of others.
        engines_sleep: whether the engine of a runner that comes back while weights cannot be had is to sleep.

    Attributes:
        longest_poll_s: how long a `poll` should wait: lost runners are looked for between two of them.
    """

    longest_poll_s = 0.5

    def __init__(
        self,
        handles: Mapping[int, Any],
        *,
        timeout_s: float,
        weights: Callable[[], Weights | None],
        kill: Callable[[Any], None] = kill_process,
        on_health: Callable[[int, bool], None] = lambda number, healthy: None,
        spares: Collection[int] = (),
        engines_sleep: bool = False,
    ) -> None:
        self.runners = {number: RemoteRunner(number, handle) for number, handle in handles.items()}
        self.places = len(handles) - len(spares)
        self.timeout_s, self.start_s = timeout_s, max(START_S, timeout_s)
        self.version = -1
        self.counts = SupervisorCounts()
        self.round, self.closed = 0, False
        self.lock = threading.RLock()
        self._weights, self._kill, self._on_health = weights, kill, on_health
        self._engines_sleep = engines_sleep
        self._restarts: dict[int, RunnerRestart] = {}
        self._orphans: list[Request] = []
        self._lost_runners = LostRunners(self.start_s)
        self._recoveries: list[float] = []
        self._failure: StaleWeights | None = None
        self._kept: list[tuple[RemoteRunner, Call, RunnerReport]] = []  # answers that came in while nobody polled
        self._ping_at = 0.0
        for number in spares:
            self.runners[number].spare = True
            self._put_out_of_service(self.runners[number], lost=False)

    def ready(self) -> list[RemoteRunner]:
        """Return the runners that may be given work."""
        return [runner for runner in self.runners.values() if runner.ready and not runner.spare]

    def up(self) -> list[RemoteRunner]:
        """Return the runners that hold the current weights, spares included."""
        return [runner for runner in self.runners.values() if runner.ready]

    @property
    def starting(self) -> bool:
        """Whether a runner is on its way back and will need weights."""
        return bool(self._restarts)

    def take_orphans(self) -> list[Request]:
        """Return the requests that lost runners held, since the last call."""
        orphans, self._orphans = self._orphans, []
        return orphans

    def take_recoveries(self) -> list[float]:
        """Return the seconds for which places of lost runners were empty, of those filled since the last call."""
        recoveries, self._recoveries = self._recoveries, []
        return recoveries

    def begin_round(self) -> None:
        """Report only answers to calls sent from now on; time without polling does not count."""
        self.round += 1
        self._kept.clear()
        self._lost_runners.ready_at = time.monotonic()
        for runner in self.runners.values():
            runner.last_heard = self._lost_runners.ready_at

    def poll(self, seconds: float) -> list[tuple[RemoteRunner, Call, RunnerReport]]:
        """Wait until a runner answers, for `seconds` at most; returns this round's answers, and replaces the lost.

        Raises:
            NoEnvRunnerLeft: no runner is ready, and none came back in time; or runners are lost again and again.
            StaleWeights: a runner keeps answering with other weights.
        """
        if self.closed:
            raise WorkersClosed("the env runners were stopped during a rollout")
        if self._failure is not None:
            raise self._failure
        answers, self._kept = self._kept, []
        answers += self._take_answers(0.0 if answers else seconds)
        self._watch()
        self._lost_runners.require_runners(self.runners.values(), len(self.ready()))
        return answers

    def attend(self) -> None:
        """Replace lost runners between rollouts, without waiting; `poll` returns and raises what this finds.

        With rollouts beside the learners answers may come in meanwhile.
        """
        if self.closed or self._failure is not None:
            return
        try:
            self._kept += self._take_answers(0.0)
            self._watch()
        except StaleWeights as error:
            self._failure = error

    def lose(self, runner: RemoteRunner, reason: str, *, kill: bool = True, dismiss: bool = False) -> None:
        """Take a runner out of service, and take back its requests.

        Args:
            runner: which one.
            reason: why, in words.
            kill: whether its process may be there still. Otherwise it is killed only if it answers again.
            dismiss: whether a process in its place may have begun with what it held.
        """
        held = len(runner.held)
        _logger.warning("env runner %d %s; it is replaced, its %d requests go to others", runner.number, reason, held)
        self._lost_runners.count(f"env runner {runner.number} {reason}")
        restart = self._put_out_of_service(runner, lost=True, old_pid=runner.pid, dismiss=dismiss)
        if kill:
            restart.kill_process()
        self._fill_places()

    def give_weights_again(self, runner: RemoteRunner, found: set[int]) -> None:
        """Send the current weights again to a runner that has others: it died and restarted unnoticed.

        Raises:
            StaleWeights: it has happened too often in a row.
        """
        self._note_stale(runner, found)
        self._put_out_of_service(runner, lost=False, dismiss=True)

    def progressed(self) -> None:
        """Note that rollouts arrived: the losses so far were not in vain."""
        self._lost_runners.without_progress = 0

    def grading_totals(self) -> dict[int, dict[str, int]]:
        """Return the counts of the graders of each runner's process, of this run or not; without the silent ones."""
        sent = {runner.handle.get_grading_counts.remote(): runner.number for runner in self.ready()}
        answered = ray.wait(list(sent), num_returns=len(sent), timeout=GRADING_COUNTS_TIMEOUT_S)[0] if sent else []
        totals = {}
        for reference in answered:
            with contextlib.suppress(RayError):  # a runner that died has no counts; the next call to it shows that
                totals[sent[reference]] = ray.get(reference)  # waits: it has answered
        return totals

    def confirm(self, version: int, lost: Mapping[int, str], *, kill: bool = True) -> None:
        """Note that a push has brought all that were up to `version`, except those `lost` for the given reason."""
        self.version = version
        for number, reason in lost.items():
            if self.runners[number].ready:
                self.lose(self.runners[number], reason, kill=kill)

    def send_weights(self, version: int, state: Mapping[str, Any]) -> None:
        """Send weights to every runner that is up, after the calls that it has; those are answered with older ones.

        Args:
            version: of the weights.
            state: what `set_state` is to take.
        """
        self.version = version
        for runner in self.up():
            runner.take_weights(version, state)

    def _put_out_of_service(
        self, runner: RemoteRunner, *, lost: bool, old_pid: int | None = None, dismiss: bool = False
    ) -> RunnerRestart:
        self._orphans += runner.held.values()
        if dismiss:
            runner.dismiss()
        runner.held.clear()
        runner.to_withdraw.clear()
        runner.calls.clear()
        runner.state = RunnerState.STARTING
        restart = RunnerRestart(runner, self._kill, self.start_s, lost, old_pid, self._engines_sleep)
        self._restarts[runner.number] = restart
        self._on_health(runner.number, False)
        return restart

    def _fill_places(self) -> None:
        """Let spares that are ready take the places of runners that are not."""
        absent = [runner for runner in self.runners.values() if not (runner.ready or runner.spare)]
        spares = [runner for runner in self.up() if runner.spare]
        for runner, spare in zip(absent, spares, strict=False):
            runner.spare, spare.spare = True, False
            restart = self._restarts.get(runner.number)  # none if it was given up
            seconds = time.monotonic() - restart.began if restart else 0.0
            self._recoveries.append(seconds)
            numbers = (spare.number, runner.number, seconds)
            _logger.warning("env runner %d, a spare, replaced env runner %d after %.1f s", *numbers)

    def _take_answers(self, seconds: float) -> list[tuple[RemoteRunner, Call, RunnerReport]]:
        answers = []
        for reference, owner in self._wait(seconds):
            if reference not in owner.calls:  # of its way back, or another call of a runner that has just been lost
                self._take_step_back(owner, reference)
                continue
            call = owner.answered(reference)
            answer = self._result(owner, reference)
            if answer is None:
                continue
            if call.ping:
                self._note_process(owner, answer)
            elif call.weights is not None:
                if answer != call.weights:
                    self.give_weights_again(owner, {answer})
            elif call.round == self.round:
                answers.append((owner, call, answer))
        return answers

    def _wait(self, seconds: float) -> Iterable[tuple[Any, RemoteRunner]]:
        owners = {reference: runner for runner in self.runners.values() for reference in runner.calls}
        owners |= {each.call: each.runner for each in self._restarts.values() if each.call is not None}
        if not owners:
            time.sleep(min(seconds, RETRY_S))
            return []
        references = list(owners)
        done, rest = ray.wait(references, num_returns=1, timeout=seconds)
        if done and rest:
            done += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [(reference, owners[reference]) for reference in done]

    def _result(self, runner: RemoteRunner, reference: Any) -> Any:
        """An answer, or None from a runner that is lost."""
        try:
            return ray.get(reference)  # waits: it has answered
        except RayError as error:
            self.lose(runner, describe(error), kill=isinstance(error, RayTaskError))
        return None

    def _note_process(self, runner: RemoteRunner, pid: int) -> None:
        """Another process than before has none of the weights."""
        if runner.pid not in (None, pid):
            self.lose(runner, "died and restarted unnoticed", kill=False, dismiss=True)
        runner.pid = pid

    def _take_step_back(self, runner: RemoteRunner, reference: Any) -> None:
        restart = self._restarts.get(runner.number)
        if restart is None or restart.call is not reference:
            return
        try:
            version = restart.take_answer()
        except GivenUp as reason:
            self._give_up(runner, str(reason))
            return
        if version == self.version:
            self._take_back(runner, restart)
        elif version is not None and restart.pushed == self.version:  # else others were pushed meanwhile
            self._note_stale(runner, {version})

    def _take_back(self, runner: RemoteRunner, restart: RunnerRestart) -> None:
        del self._restarts[runner.number]
        runner.state, was_spare = RunnerState.READY, runner.spare
        self._on_health(runner.number, True)
        if restart.lost:
            self.counts.restarts += 1
            seconds = time.monotonic() - restart.began
            as_what = ", as a spare" if was_spare else ""
            _logger.warning("env runner %d is back after %.1f s%s", runner.number, seconds, as_what)
            self._recoveries += [] if was_spare else [seconds]
        self._fill_places()

    def _watch(self) -> None:
        now = time.monotonic()
        for runner in self.up():
            if runner.calls and now - runner.last_heard > self.timeout_s:
                self.counts.hung += 1
                self.lose(runner, f"has not answered for {self.timeout_s:g} s (env_runners.timeout_s)")
        if now >= self._ping_at:
            self._ping_at = now + max(PING_EVERY_S, len(self.runners) / PINGS_A_SECOND)
            for runner in self.up():
                if not runner.calls:
                    runner.ping()
        for restart in list(self._restarts.values()):
            try:
                restart.proceed(self._weights)
            except GivenUp as reason:
                self._give_up(restart.runner, str(reason))

    def _note_stale(self, runner: RemoteRunner, found: set[int]) -> None:
        runner.stale_in_a_row += 1
        if runner.stale_in_a_row > MOST_STALE:
            raise StaleWeights(
                f"env runner {runner.number} has weights {sorted(found)}, the learners hold {self.version}, which it "
                f"was sent {MOST_STALE} times; start again with --resume"
            )
        _logger.warning(
            "env runner %d has weights %s, not %d: they are sent again", runner.number, sorted(found), self.version
        )

    def _give_up(self, runner: RemoteRunner, reason: str) -> None:
        self._lost_runners.last = f"env runner {runner.number} {reason}"
        _logger.error("%s; the run continues without it", self._lost_runners.last)
        del self._restarts[runner.number]
        runner.state = RunnerState.GONE
        self._fill_places()
