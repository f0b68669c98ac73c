"""The return of one env runner that was lost, or is started as a spare: a process that answers, then weights."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from algorithms.rollout.losses import describe
from algorithms.rollout.remote_runner import RemoteRunner

MOST_STARTS = 3
MOST_DEATHS = 3
# Ray takes a second to refuse a call to an actor whose process starts.
RETRY_S = 0.25

Weights = tuple[int, Mapping[str, Any]]


class GivenUp(Exception):
    """A runner does not return; the message says why."""


@dataclass
class Comeback:
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

    def go_on(self, weights: Callable[[], Weights | None]) -> None:
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
