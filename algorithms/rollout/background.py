"""Threads beside the training loop: rollouts ahead of their step, and who looks after runners between rollouts."""

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

import ray

from algorithms.rollout.supervisor import WorkerSupervisor

LOOK_EVERY_S = 0.2
JOIN_S = 5.0


T = TypeVar("T")


class Background(Generic[T]):
    """A call that runs beside its maker; it does not keep the process alive.

    Args:
        work: what to call.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Wait for the end of the call; returns what it returned, and raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def wait(self, seconds: float) -> None:
        """Wait for the end of the call, however it ends, but not forever."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # raised again by `result`
            self._error = error


class Attendant:
    """Calls `attend` again and again while the supervisor's lock is free: between rollouts, and during updates.

    It ends with `stop`, with the supervisor, with Ray, and with the process.

    Args:
        supervisor: of the runners; whoever calls runners himself holds its lock meanwhile.
    """

    def __init__(self, supervisor: WorkerSupervisor) -> None:
        self._supervisor = weakref.ref(supervisor)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="env runner attendant", daemon=True)
        atexit.register(self.stop)  # before Ray's own: the thread must not call it then
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(JOIN_S)
        atexit.unregister(self.stop)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            supervisor = self._supervisor()
            if supervisor is None or not ray.is_initialized():  # or a call would start a Ray of its own
                return
            if supervisor.lock.acquire(blocking=False):
                with contextlib.ExitStack() as stack:
                    stack.callback(supervisor.lock.release)
                    supervisor.attend()
            del supervisor
