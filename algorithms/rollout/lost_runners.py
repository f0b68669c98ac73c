"""Count lost env runners, restart one, and raise the errors that end a run for it."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from algorithms.rollout.remote_runner import RemoteRunner, RunnerState
from algorithms.utils.errors import RunError

# A request that kills every runner it meets must not kill them forever.
LOSSES_WITHOUT_PROGRESS = 2
MOST_STARTS = 3
MOST_DEATHS = 3
# Ray takes a second to refuse a call to an actor whose process starts.
RETRY_S = 0.25

Weights = tuple[int, Mapping[str, Any]]


class NoEnvRunnerLeft(RunError, TimeoutError):
    """No env runner answers, and none has come back in time."""


class StaleWeights(RunError):
    """A runner keeps sampling with other weights than the learners hold, even after they were sent again."""


class WorkersClosed(RuntimeError):
    """The env runners were stopped during a rollout."""


class LostRunners:
    """Decides whether it still makes sense to wait for runners.

    Args:
        limit_s: how long there may be none that is ready.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.without_progress, self.last = 0, ""
        self.ready_at = time.monotonic()

    def count(self, last: str) -> None:
        """Count a loss."""
        self.without_progress, self.last = self.without_progress + 1, last

    def require_runners(self, runners: Collection[RemoteRunner], ready: int) -> None:
        """Check that there is a runner to wait for.

        Args:
            runners: all of them.
            ready: how many can be given work.

        Raises:
            NoEnvRunnerLeft: no runner is ready, and none came back in time; or runners are lost again and again.
        """
        now = time.monotonic()
        if ready:
            self.ready_at = now
        elif now - self.ready_at > self.limit_s or all(runner.state is RunnerState.GONE for runner in runners):
            raise NoEnvRunnerLeft(self._describe("they were lost, and none came back in time"))
        if self.without_progress > LOSSES_WITHOUT_PROGRESS * len(runners):
            reason = f"{self.without_progress} were lost without a single rollout in between"
            raise NoEnvRunnerLeft(self._describe(reason))

    def _describe(self, what: str) -> str:
        return (
            f"no env runner is left: {what}; the last: {self.last}. Fix: look into the runners' logs (Ray's "
            "session folder, logs/worker-*), raise env_runners.timeout_s if responses take longer than that, and "
            "resume from the last checkpoint with --resume"
        )


def describe(error: RayError) -> str:
    """Describe what happened to a runner. After an exception its process lives, but in an unknown state."""
    if isinstance(error, RayTaskError):
        where = str(error).strip()
        return f"raised {error.cause!r}:\n{where}\n"
    return f"died ({type(error).__name__}: {str(error).strip().splitlines()[0]})"


class GivenUp(Exception):
    """A runner does not return; the message says why."""


@dataclass
class RunnerRestart:
    """The answers that a runner still owes before it is ready.

    Ray starts an actor whose process died again by itself, at once, and a kill would only begin that anew: a process is
    killed here only if it still answers, or never does.

    Args:
        runner: whose way it is.
        kill: ends a handle's process so that it starts anew.
        limit_s: how long a start may take.
        lost: whether the runner was lost: not at the first start of a spare.
        old_pid: of the process that was lost and must not be used any more.
        sleeps: whether its engine is to free its GPU's memory while weights cannot be had: learners use it then.
        began: when the runner was lost, monotonic seconds.
        call: its unanswered call, if any.
        pushed: the version of the weights that it was sent last.
    """

    runner: RemoteRunner
    kill: Callable[[Any], None]
    limit_s: float
    lost: bool
    old_pid: int | None = None
    sleeps: bool = False
    began: float = field(default_factory=time.monotonic)
    call: Any = None
    pushed: int = -1
    _is_up: bool = False
    _is_asleep: bool = False
    _killed: bool = False
    _starts: int = 1
    _deaths: int = 0
    _retry_at: float = 0.0
    _start_began: float = field(default_factory=time.monotonic)

    def kill_process(self) -> None:
        """Kill the process that was lost, if it still runs."""
        self._killed = True
        self.kill(self.runner.handle)

    def proceed(self, weights: Callable[[], Weights | None]) -> None:
        """Take the next step, without waiting.

        Args:
            weights: what `set_state` is to take; None while they cannot be had.

        Raises:
            GivenUp: the runner was started often enough.
        """
        now = time.monotonic()
        if now - self._start_began > self.limit_s:
            self._start_again(f"did not come back within {self.limit_s:g} s")
        elif self.call is None and now >= self._retry_at:
            if not self._is_up:
                self.call = self.runner.handle.get_pid.remote()
            elif (found := weights()) is not None:
                self.pushed, state = found
                self.call = self.runner.handle.set_state.remote(state)
            else:
                self._start_began = now
                if self.sleeps and not self._is_asleep:
                    self._is_asleep = True
                    self.call = self.runner.handle.sleep_engine.remote()

    def take_answer(self) -> int | None:
        """Take the answer to the call; returns the version of the weights that it confirms, if it does.

        Raises:
            GivenUp: the runner died too often, or was started often enough.
        """
        reference, self.call = self.call, None
        try:
            answer: int = ray.get(reference)  # waits: it has answered
        except RayTaskError as error:
            self._start_again(f"could not take weights ({describe(error)})")
        except RayError as error:
            self._wait_for_process(error)
        else:
            if self._is_up:
                return answer
            self._meet(answer)
        return None

    def _meet(self, pid: int) -> None:
        """A process answers: a new one, or the old one, which was only out of reach."""
        if pid != self.old_pid:
            self._is_up, self._is_asleep, self.runner.pid = True, False, pid
            return
        self._retry_at = time.monotonic() + RETRY_S
        if not self._killed:
            self.kill_process()

    def _wait_for_process(self, error: RayError) -> None:
        """Try again soon: its process starts. Ray starts no actor again whose constructor raised."""
        if self._is_up:
            self._is_up, self._killed, self.old_pid = False, False, self.runner.pid
        self._retry_at = time.monotonic() + RETRY_S
        self._deaths += isinstance(error, ActorDiedError)
        if self._deaths >= MOST_DEATHS:
            raise GivenUp(f"could not be started: {error}")

    def _start_again(self, reason: str) -> None:
        if self._starts >= MOST_STARTS:
            raise GivenUp(f"was started {self._starts} times, and {reason}")
        self._starts += 1
        self._start_began, self.call, self.lost = time.monotonic(), None, True
        self._is_up, self.old_pid = False, self.runner.pid
        self.kill_process()


def kill_process(handle: Any) -> None:
    """Kill an actor's process, a stopped one too; Ray starts the actor again."""
    ray.kill(handle, no_restart=False)
