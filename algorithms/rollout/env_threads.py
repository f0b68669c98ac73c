"""Threads in which environments step; a thread whose environment never returns is abandoned."""

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_CLOSING_S = 5.0


class Work:
    """Something that a thread does: a future costs more than a quick environment's step.

    Attributes:
        error: what it raised.
    """

    __slots__ = ("_arguments", "_call", "error")

    def __init__(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._call, self._arguments = call, arguments
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the work in a thread; keep whatever it raises."""
        try:
            self._call(*self._arguments)
        except BaseException as error:
            self.error = error


class SteppingThreads:
    """A pool whose threads end with the process, whatever they are doing: a library's would be waited for at exit.

    Waking a thread costs more than a quick environment's step does, above all while an engine computes beside it. So a
    thread takes whatever waits in line, and `spread` wakes as many more as are at work, and one, when something
    still does: quick steps share a thread, slow ones are soon in hundreds of them.

    Args:
        most: threads that work at once; they are started as they are needed.
        done: called in the thread with what it has done.
    """

    def __init__(self, most: int, done: Callable[[Work], None] = lambda work: None) -> None:
        self._most, self._done = most, done
        self._waiting: deque[Work] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._started: dict[Work, float] = {}
        self._lock = threading.Lock()
        self._idle = 0
        self._given_up = 0

    def submit(self, work: Work) -> None:
        """Put some work in line, which `spread` sees to."""
        self._waiting.append(work)

    def spread(self) -> bool:
        """Wake or start threads for waiting work; return whether any did, so that it is worth checking again soon."""
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

    def overdue(self, seconds: float) -> list[Work]:
        """Return the work that has taken a thread longer than this."""
        begun_before = time.monotonic() - seconds
        return [work for work, started in list(self._started.items()) if started < begun_before]

    def give_up(self, work: Work) -> None:
        """Wait no longer for some work: another thread takes the place of the one that is at it."""
        if self._started.pop(work, None) is not None:
            self._given_up += 1
            self._start()

    def close(self) -> None:
        """Let the threads end, and wait briefly for those that can."""
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
                work = self._waiting.popleft()
            except IndexError:
                with self._lock:
                    self._idle += 1
                if self._wake.get():  # waits: until there is work, or `close`
                    continue
                return
            self._started[work] = time.monotonic()
            work.run()
            self._done(work)
            if self._started.pop(work, None) is None:
                return  # given up; its place is taken
