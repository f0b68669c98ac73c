"""A small pool of killable children, safe to use from any thread."""

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from r3env.child_processes.process import (
    Child,
    ProcessDiedError,
    ProcessStartError,
    ProcessTamperedError,
    ProcessTimeoutError,
)

Reply = TypeVar("Reply")


class ChildPool:
    """Up to `size` children, started when needed and replaced when they die; they end with this process.

    One more than is in use is kept in reserve, as far as `size` allows: the next request does not wait for a start.
    A forked process starts children of its own.
    """

    def __init__(self, size: int, module: str, name: str, *, on_replaced: Callable[[], None] = lambda: None) -> None:
        """Make the pool; no process is started yet.

        Args:
            size: Children at most.
            module: What they run, see `Child`.
            name: What they are, for messages.
            on_replaced: Called whenever one has died.

        Raises:
            ValueError: `size` is not positive.
        """
        if size < 1:
            raise ValueError(f"a pool needs at least one {name}, not {size}")
        self._size, self._module, self._name = size, module, name
        self._on_replaced = on_replaced
        self._closed = False
        self._clear()
        _pools.add(self)

    def _clear(self) -> None:
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._changed = threading.Condition()

    def exchange(self, talk: Callable[[Child], Reply]) -> Reply:
        """Let `talk` send a request to a child and receive the replies.

        An earlier request may have spoiled its child: left something in the pipe, or ended it, and somebody else may
        have stopped it. So a failed exchange is repeated once, with a child that had no request before. What fails
        there is the request's own doing.

        Raises:
            ProcessTimeoutError: The child has not replied.
            ProcessStartError: None could be started.
            ProcessDiedError: The child died, or the pool was closed.
            ProcessTamperedError: What came was not the reply.
        """
        with self.child() as child:
            was_used = child.used
            try:
                return talk(child)
            except (ProcessTimeoutError, ProcessDiedError, ProcessTamperedError):
                child.kill()
                if not was_used:
                    raise
        with self.child(unused=True) as child:
            return talk(child)

    @contextlib.contextmanager
    def child(self, unused: bool = False) -> Iterator[Child]:
        """Yield a child that is ready, after waiting for a free one.

        Args:
            unused: Whether it must be one that had no request yet.

        Raises:
            ProcessStartError: None could be started.
            ProcessDiedError: The pool was closed.
        """
        child = self._take(unused)
        try:
            child.wait_until_ready()
            yield child
        except (ProcessTimeoutError, ProcessDiedError):
            raise  # it is ready for the next request, or dead
        except BaseException:
            # Such as Ctrl-C: the reply to this request must not be taken for the reply to the next one.
            child.kill()
            raise
        finally:
            if not child.alive:
                self._on_replaced()
            self._give_back(child)

    def close(self) -> None:
        """Kill every child; requests in progress end with `ProcessDiedError`."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            for child in (*idle, *self._busy):
                child.kill()
            self._changed.notify_all()
        for child in idle:
            child.close_pipes()

    def abandon(self) -> None:
        """Leave the children to the process that this one was forked from: two talking at once would mix up replies."""
        for child in (*self._idle, *self._busy):
            child.close_pipes()
        self._clear()  # another thread of the parent may have held the lock

    def _take(self, unused: bool) -> Child:
        with self._changed:
            self._drop_unusable()
            while not self._idle and len(self._busy) >= self._size and not self._closed:
                self._changed.wait()  # waits: every exchange has a limit
                self._drop_unusable()
            if self._closed:
                raise ProcessDiedError("the pool was closed")
            fit = [one for one in self._idle if not (unused and one.used)]
            if not fit and len(self._idle) + len(self._busy) >= self._size:
                self._drop(self._idle[-1])
            # Best one that has started, else the one that has been starting for longest.
            child = next((one for one in fit if one.started), None) or next(iter(fit), None)
            if child is None:
                child = Child(self._module, self._name)
            else:
                self._idle.remove(child)
            self._busy.add(child)
            if not self._idle and len(self._busy) < self._size:
                with contextlib.suppress(ProcessStartError):  # it can be done without
                    self._idle.append(Child(self._module, self._name))
            return child

    def _give_back(self, child: Child) -> None:
        with self._changed:
            self._busy.discard(child)
            if child.alive and not self._closed:
                self._idle.insert(0, child)
            else:
                child.close_pipes()
            self._changed.notify()

    def _drop_unusable(self) -> None:
        for child in [one for one in self._idle if not one.usable]:
            self._drop(child)

    def _drop(self, child: Child) -> None:
        self._idle.remove(child)
        child.kill()
        child.close_pipes()


_pools: "weakref.WeakSet[ChildPool]" = weakref.WeakSet()


def _for_each_pool(action: Callable[[ChildPool], None]) -> None:
    for pool in list(_pools):
        action(pool)


atexit.register(_for_each_pool, ChildPool.close)
os.register_at_fork(after_in_child=lambda: _for_each_pool(ChildPool.abandon))
