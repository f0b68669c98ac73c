"""Remote env runners that die, hang, raise and come back: their calls, their health, their weights."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from algorithms.rollout.remote_runner import Call, RemoteRunner, RunnerState
from algorithms.rollout.types import Request, RunnerReport
from algorithms.utils.errors import RunError

# How long the start of a runner may take, model and engine included, if its deadline for answers is shorter.
START_S = 600.0
MOST_STARTS = 3
MOST_DEATHS = 3
RETRY_S = 0.5
# A request that kills every runner it meets must not kill them forever.
LOSSES_WITHOUT_PROGRESS = 2
MOST_STALE = 3

Weights = tuple[int, Mapping[str, Any]]
_logger = logging.getLogger(__name__)


@dataclass
class SupervisorCounts:
    """What went wrong so far."""

    restarts: int = 0
    hung: int = 0


@dataclass
class _Start:
    """A runner on its way back: the push of weights that it has not answered, and when the way began."""

    since: float
    process: bool
    push: Any = None
    version: int = -1
    retry_at: float = 0.0
    starts: int = 1
    deaths: int = 0


def kill_process(handle: Any) -> None:
    """Kill an actor's process, a stopped one too; Ray starts the actor again."""
    ray.kill(handle, no_restart=False)


class WorkerSupervisor:
    """All remote runners. Those that are ready hold the weights of `version`.

    A runner is lost when a call of its raises, when its process dies, or when it has not answered for `timeout_s`. It
    is then killed and started again, gets the current weights, and is ready; the others continue meanwhile.

    Args:
        handles: a Ray actor, or something with its `advance.remote` and `set_state.remote`, by the runner's number.
        timeout_s: how long a runner may take to answer.
        weights: the version and the `set_state` argument that a runner gets when it comes back.
        kill: ends a handle's process so that it starts anew.
        on_health: called when a runner is lost (False) or back (True).
        start_s: how long a start may take.
    """

    def __init__(
        self,
        handles: Mapping[int, Any],
        *,
        timeout_s: float,
        weights: Callable[[], Weights],
        kill: Callable[[Any], None] = kill_process,
        on_health: Callable[[int, bool], None] = lambda number, healthy: None,
        start_s: float = START_S,
    ) -> None:
        self.runners = {number: RemoteRunner(number, handle) for number, handle in handles.items()}
        self.timeout_s, self.start_s = timeout_s, max(start_s, timeout_s)
        self.version = -1
        self.counts = SupervisorCounts()
        self.round = 0
        self.closed = False
        self._weights, self._kill, self._on_health = weights, kill, on_health
        self._starts: dict[int, _Start] = {}
        self._orphans: list[Request] = []
        self._losses, self._last_loss, self._ready_at = 0, "", time.monotonic()

    def ready(self) -> list[RemoteRunner]:
        """Runners that may be given work."""
        return [runner for runner in self.runners.values() if runner.ready]

    def take_orphans(self) -> list[Request]:
        """What lost runners held since the last call."""
        orphans, self._orphans = self._orphans, []
        return orphans

    def begin_round(self) -> None:
        """Report only answers to calls sent from now on; time in which nobody polled counts for nothing."""
        self.round += 1
        self._ready_at = time.monotonic()
        for runner in self.runners.values():
            runner.last_heard = self._ready_at
        for start in self._starts.values():
            start.since = self._ready_at

    def poll(self, seconds: float) -> list[tuple[RemoteRunner, Call, RunnerReport]]:
        """Wait until a runner answers, for `seconds` at most; returns this round's answers, and replaces the lost.

        Raises:
            NoEnvRunnerLeft: no runner is ready, and none came back in time; or runners are lost again and again.
            StaleWeights: a runner keeps answering with other weights.
        """
        if self.closed:
            raise WorkersClosed("the env runners were stopped during a rollout")
        answers = []
        for reference, owner in self._wait(seconds):
            if reference not in owner.calls:  # a push, or another call of a runner that has just been lost
                self._take_push(owner, reference)
                continue
            call = owner.answered(reference)
            report = self._result(owner, reference)
            if report is not None and call.round == self.round:
                answers.append((owner, call, report))
        self._watch()
        return answers

    def lose(self, runner: RemoteRunner, reason: str) -> None:
        """Take a runner out of service, kill what is left of its process, and take back what it held."""
        held = len(runner.held)
        _logger.warning("env runner %d %s; it is replaced, its %d requests go to others", runner.number, reason, held)
        self._losses, self._last_loss = self._losses + 1, f"env runner {runner.number} {reason}"
        self._put_out_of_service(runner, process=True)
        self._kill(runner.handle)

    def give_weights_again(self, runner: RemoteRunner, found: set[int]) -> None:
        """Bring a runner to the current weights that was found with others: it died and came back unseen.

        Raises:
            StaleWeights: it has happened too often in a row.
        """
        self._note_stale(runner, found)
        self._orphans += runner.held.values()
        runner.dismiss()
        self._put_out_of_service(runner, process=False)

    def progressed(self) -> None:
        """Rollouts came back: the losses so far were not in vain."""
        self._losses = 0

    def confirm(self, version: int, lost: Mapping[int, str]) -> None:
        """A push has brought all ready runners to `version`, except those that are `lost` for the reason given."""
        self.version = version
        for number, reason in lost.items():
            if self.runners[number].ready:
                self.lose(self.runners[number], reason)

    def _put_out_of_service(self, runner: RemoteRunner, *, process: bool) -> None:
        self._orphans += runner.held.values()
        runner.held.clear()
        runner.to_withdraw.clear()
        runner.calls.clear()
        runner.state = RunnerState.STARTING
        self._starts[runner.number] = _Start(time.monotonic(), process)
        self._on_health(runner.number, False)

    def _wait(self, seconds: float) -> Iterable[tuple[Any, RemoteRunner]]:
        owners = {reference: runner for runner in self.runners.values() for reference in runner.calls}
        owners |= {start.push: self.runners[n] for n, start in self._starts.items() if start.push is not None}
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
            return ray.get(reference)
        except RayError as error:
            self.lose(runner, _describe(error))
        return None

    def _take_push(self, runner: RemoteRunner, reference: Any) -> None:
        start = self._starts.get(runner.number)
        if start is None or start.push is not reference:
            return
        start.push = None
        try:
            version = ray.get(reference)
        except RayTaskError as error:
            self._start_again(runner, start, f"could not take weights ({_describe(error)})")
            return
        except RayError as error:
            self._not_there(runner, start, error)
            return
        if version == self.version:
            del self._starts[runner.number]
            runner.state = RunnerState.READY
            self.counts.restarts += start.process
            self._on_health(runner.number, True)
        elif start.version == self.version:  # else others were pushed meanwhile
            self._note_stale(runner, {version})

    def _watch(self) -> None:
        now = time.monotonic()
        for runner in self.ready():
            if runner.calls and now - runner.last_heard > self.timeout_s:
                self.counts.hung += 1
                self.lose(runner, f"has not answered for {self.timeout_s:g} s (env_runners.timeout_s)")
        for number, start in list(self._starts.items()):
            runner = self.runners[number]
            if now - start.since > self.start_s:
                self._start_again(runner, start, f"did not come back within {self.start_s:g} s")
            elif start.push is None and now >= start.retry_at:
                start.version, state = self._weights()
                start.push = runner.handle.set_state.remote(state)
        if self.ready():
            self._ready_at = now
        elif all(runner.state is RunnerState.GONE for runner in self.runners.values()) or (
            now - self._ready_at > self.start_s
        ):
            raise NoEnvRunnerLeft(self._all_lost("they were lost, and none came back in time"))
        if self._losses > LOSSES_WITHOUT_PROGRESS * len(self.runners):
            raise NoEnvRunnerLeft(self._all_lost(f"{self._losses} were lost without a single rollout in between"))

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

    def _not_there(self, runner: RemoteRunner, start: _Start, error: RayError) -> None:
        """Try again soon: its process starts. Ray starts no actor again whose constructor raised."""
        start.retry_at = time.monotonic() + RETRY_S
        start.deaths += isinstance(error, ActorDiedError)
        if start.deaths >= MOST_DEATHS:
            self._give_up(runner, f"could not be started: {error}")

    def _give_up(self, runner: RemoteRunner, reason: str) -> None:
        self._last_loss = f"env runner {runner.number} {reason}"
        _logger.error("%s; the run continues without it", self._last_loss)
        del self._starts[runner.number]
        runner.state = RunnerState.GONE

    def _start_again(self, runner: RemoteRunner, start: _Start, reason: str) -> None:
        if start.starts >= MOST_STARTS:
            self._give_up(runner, f"was started {start.starts} times, and {reason}")
            return
        self._last_loss = f"env runner {runner.number} {reason}"
        start.since, start.push, start.starts, start.process = time.monotonic(), None, start.starts + 1, True
        self._kill(runner.handle)

    def _all_lost(self, what: str) -> str:
        return (
            f"no env runner is left: {what}; the last: {self._last_loss}. Fix: look into the runners' logs (Ray's "
            "session folder, logs/worker-*), raise env_runners.timeout_s if responses take longer than that, and "
            "resume from the last checkpoint with --resume"
        )


def _describe(error: RayError) -> str:
    """Describe what happened to a runner. After an exception its process lives, but in an unknown state."""
    if isinstance(error, RayTaskError):
        where = str(error).strip()
        return f"raised {error.cause!r}:\n{where}\n"
    return f"died ({type(error).__name__}: {str(error).strip().splitlines()[0]})"


class NoEnvRunnerLeft(RunError, TimeoutError):
    """No env runner answers, and none has come back in time."""


class StaleWeights(RunError):
    """A runner keeps sampling with other weights than the learners hold, even after they were sent again."""


class WorkersClosed(RuntimeError):
    """The env runners were stopped during a rollout."""
