"""A small pool of killable graders, safe to use from any thread."""

import contextlib
import threading
from collections.abc import Callable

from r3env.grading.grader import Grader, GraderDiedError, GraderError, GraderTimeoutError

_START_LIMIT_S = 120.0


class GraderPool:
    """Up to `size` graders, started when needed and replaced when they die.

    One more than is in use is kept in reserve, as far as `size` allows: the next answer does not wait for a start.
    """

    def __init__(self, size: int, *, on_restart: Callable[[], None] = lambda: None) -> None:
        """Makes the pool; nothing is started yet.

        Args:
            size: Graders at most.
            on_restart: Called whenever a process was replaced.

        Raises:
            ValueError: `size` is not positive.
        """
        if size < 1:
            raise ValueError(f"a pool needs at least one grader, not {size}")
        self._size = size
        self._on_restart = on_restart
        self._idle: list[Grader] = []
        self._busy: set[Grader] = set()
        self._closed = False
        self._changed = threading.Condition()

    def compare(self, gold: str, answer: str, timeout_s: float) -> tuple[bool, bool]:
        """Whether the answer is equivalent to the gold, and whether one of the two could not be read.

        Waits for a grader first. The deadline counts from when one takes the answer up.

        Raises:
            GraderTimeoutError: The answer took longer than `timeout_s`.
            GraderDiedError: Grading failed, for example for want of memory.
            GraderError: No grader could be started.
        """
        grader = self._take()
        restarts = grader.restarts
        try:
            if not grader.ready(_START_LIMIT_S):
                raise GraderError(f"a grader process was not ready after {_START_LIMIT_S:.0f} s")
            return grader.ask(gold, answer, timeout_s)
        except (GraderTimeoutError, GraderDiedError):
            raise  # it is ready for the next answer, or dead
        except BaseException:
            # Such as Ctrl-C: the reply to this answer must not be taken for the reply to the next one.
            grader.kill()
            raise
        finally:
            if grader.restarts > restarts or not grader.alive:
                self._on_restart()
            self._give_back(grader)

    def close(self) -> None:
        """Kills every grader; calls that are under way end with `GraderDiedError`."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            for grader in (*idle, *self._busy):
                grader.kill()
            self._changed.notify_all()
        for grader in idle:
            grader.close_pipes()

    def abandon(self) -> None:
        """Closes the pipes to graders that serve another process, and leaves them alone otherwise."""
        for grader in (*self._idle, *self._busy):
            grader.close_pipes()

    def _take(self) -> Grader:
        with self._changed:
            self._drop_dead()
            while not self._idle and len(self._busy) >= self._size and not self._closed:
                self._changed.wait()
                self._drop_dead()
            if self._closed:
                raise GraderDiedError("the pool was closed")
            # Best one that has started, else the one that has been starting for longest.
            grader = next((one for one in self._idle if one.started), None) or next(iter(self._idle), None)
            if grader is None:
                grader = Grader()
            else:
                self._idle.remove(grader)
            self._busy.add(grader)
            self._keep_reserve()
            return grader

    def _give_back(self, grader: Grader) -> None:
        with self._changed:
            self._busy.discard(grader)
            if grader.alive and not self._closed:
                self._idle.insert(0, grader)
            else:
                grader.close_pipes()
            self._changed.notify()

    def _drop_dead(self) -> None:
        for grader in [one for one in self._idle if not one.alive]:
            self._idle.remove(grader)
            grader.close_pipes()

    def _keep_reserve(self) -> None:
        if not self._idle and len(self._busy) < self._size:
            with contextlib.suppress(GraderError):  # it can be done without
                self._idle.append(Grader())
