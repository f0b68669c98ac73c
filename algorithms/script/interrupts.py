"""Ctrl-C that waits for the end of a step: after half of one, weights, history and counters do not fit together."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_NOTICE = b"\nstopping after this step; Ctrl-C again stops at once and loses it\n"


class InterruptBetweenSteps:
    """While open, a first SIGINT only sets `requested`; a second one raises KeyboardInterrupt at once.

    Outside the main thread, where Python delivers no signals, nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not print: a signal may arrive in the middle of one.
        os.write(2, _NOTICE)
