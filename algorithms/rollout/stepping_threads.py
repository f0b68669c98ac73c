"""Threads that environments step in, and that can be given up when one of them never comes back."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

_CLOSING_S = 5.0


class SteppingThreads:
    """A pool whose threads end with the process, whatever they are doing: a library's would be waited for at exit.

    Args:
        most: threads that work at once; they are started as they are needed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[tuple[Future[None], Callable[..., None], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._started: dict[Future[None], float] = {}
        self._idle = threading.Semaphore(0)
        self._given_up = 0

    def submit(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        """Have a thread do some work, in the order in which it was submitted."""
        future: Future[None] = Future()
        self._work.put((future, work, arguments))
        if not self._idle.acquire(blocking=False) and len(self._threads) - self._given_up < self._most:
            self._start()
        return future

    def overdue(self, seconds: float) -> list[Future[None]]:
        """Work that a thread has been at for longer."""
        begun_before = time.monotonic() - seconds
        return [future for future, started in list(self._started.items()) if started < begun_before]

    def give_up(self, future: Future[None]) -> None:
        """Wait no longer for some work: another thread takes the place of the one that is at it."""
        if self._started.pop(future, None) is not None:
            self._given_up += 1
            self._start()

    def close(self) -> None:
        """Let the threads end, and wait a little for those that can."""
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        name = f"environment-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
        self._threads[-1].start()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work, arguments = item
            self._started[future] = time.monotonic()
            try:
                work(*arguments)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            if self._started.pop(future, None) is None:
                return  # given up; its place is taken
            self._idle.release()
