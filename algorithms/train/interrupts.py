"""Let Ctrl-C and SIGTERM act between steps: within one, weights, history and counters do not fit together.

A SIGHUP, of a terminal that is closed, counts as a SIGTERM unless it was ignored from the start, as `nohup` does.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_NOTICE = b"\nstopping after this step; Ctrl-C again stops as soon as a checkpoint can be made\n"
_SAVING = b"\nstopping when the checkpoint is written; Ctrl-C again does without it\n"


def orders() -> list[signal.Signals]:
    """Return the signals that end a run."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def interrupt_on_sigterm() -> None:
    """Make a SIGTERM do what Ctrl-C does. Call it after Ray's start: with Ray's own handler the process aborts.

    Outside the main thread nothing changes.
    """
    if threading.current_thread() is threading.main_thread():
        for number in orders():
            if number != signal.SIGINT:
                signal.signal(number, raise_interrupt)


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt in a signal's handler. No SIGINT is sent: background processes of a shell ignore it."""
    raise KeyboardInterrupt


class InterruptBetweenSteps:
    """While open, a first SIGINT only sets `requested`, so that the step in progress may end.

    A SIGTERM, which a cluster follows by a SIGKILL, and a second SIGINT do not wait for the step: they raise
    KeyboardInterrupt, at once where `can_stop` says so, else when the step has ended. Outside the main thread, where
    Python delivers no signals, nothing changes.

    Args:
        can_stop: whether a checkpoint could be made now.
    """

    def __init__(self, can_stop: Callable[[], bool] = lambda: True) -> None:
        self.requested = False
        self._can_stop = can_stop
        self._saving = self._given_notice = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in orders():
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """While a checkpoint is written, which signals ask for, make them only set `requested`.

        Where writing it hangs, on a learner or a network disk, a second Ctrl-C gives up.
        """
        self._saving = True
        try:
            yield
        finally:
            self._saving = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._saving:
            if number == signal.SIGINT and self._given_notice:
                raise KeyboardInterrupt
            self.requested = self._given_notice = True
            _write(_SAVING)
            return
        urgent = self.requested or number != signal.SIGINT
        if not self.requested:
            self.requested = True
            _write(b"\nstopping\n" if urgent else _NOTICE)
        if urgent and self._can_stop():
            raise KeyboardInterrupt


def _write(text: bytes) -> None:
    """Not print: a signal may arrive in the middle of one. The terminal may be gone."""
    with contextlib.suppress(OSError):
        os.write(2, text)
