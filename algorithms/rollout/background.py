"""A thread that looks after runners between rollouts, while the training loop runs."""

import atexit
import contextlib
import threading
import weakref

import ray

from algorithms.rollout.supervisor import WorkerSupervisor

LOOK_EVERY_S = 0.2
JOIN_S = 5.0


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
