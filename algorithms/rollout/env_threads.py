"""Threads that environments step in, and that can be given up when one of them never comes back."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

_CLOSING_S = 5.0


class SteppingThreads:
    """A pool whose threads end with the process, whatever they are doing: a library's would be waited for at exit.

    Waking a thread costs more than a quick environment's step does, above all while an engine computes beside it. So a
    thread takes whatever waits in line, and `spread` wakes as many more as are at work, and one, when something
    still does: quick steps share a thread, slow ones are soon in hundreds of them.

    Args:
        most: threads that work at once; they are started as they are needed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[Future[None], Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._started: dict[Future[None], float] = {}
        self._lock = threading.Lock()
        self._idle = 0
        self._given_up = 0

    def submit(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        """Put some work in line, which `spread` sees to."""
        future: Future[None] = Future()
        self._waiting.append((future, work, arguments))
        return future

    def spread(self) -> bool:
        """Wake or start threads for what waits; returns whether something did, so that to look again soon is wise."""
        if not self._waiting:
            return False
        with self._lock:
            at_work = len(self._threads) - self._given_up - self._idle
            more = max(0, min(len(self._waiting), at_work + 1, self._most - at_work))
            woken = min(more, self._idle)
            self._idle -= woken
        for _ in range(woken):
            self._wake.put(True)
        for _ in range(more - woken):
            self._start()
        return True

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
        self._waiting.clear()
        for _ in self._threads:
            self._wake.put(False)
        deadline = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        name = f"environment-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
        self._threads[-1].start()

    def _run(self) -> None:
        while True:
            try:
                future, work, arguments = self._waiting.popleft()
            except IndexError:
                with self._lock:
                    self._idle += 1
                if self._wake.get():
                    continue
                return
            self._started[future] = time.monotonic()
            try:
                work(*arguments)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            if self._started.pop(future, None) is None:
                return  # given up; its place is taken
