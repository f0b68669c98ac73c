"""End a process whatever its threads and Ray do: in a stated time, at once on a signal, with all that it started."""

import contextlib
import logging
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from algorithms.train.interrupts import orders
from algorithms.utils.process import stat_fields

# With its control process stopped Ray would wait for ever.
SHUTDOWN_S = 20.0


def leave(code: int) -> NoReturn:
    """End Ray, then the process, without waiting for threads that an environment holds up; everything is written.

    On Python's own way out RLlib's learners are freed, which start Ray again for it, and can wait without end.

    Raises:
        KeyboardInterrupt: a signal came before this function began to answer them; then `end_now`.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    # Whatever the main thread waits in, a signal's number is written there at once; before the handlers change, or a
    # signal between the two would be lost.
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_end_soon, args=(code, told), name="leave", daemon=True).start()
    for number in orders():
        signal.signal(number, lambda *_: None)
    _flush()
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    logging.shutdown()
    _flush()
    os._exit(code)


def _flush() -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        sys.stdout.flush()
        sys.stderr.flush()


def _end_soon(code: int, told: int) -> None:
    signals = select.poll()  # waits: this makes it
    signals.register(told, select.POLLIN)
    signals.poll(SHUTDOWN_S * 1000)
    end_now(code)


def end_now(code: int) -> NoReturn:
    """Kill what this process has started, stopped processes too, and end."""
    for child in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
    os._exit(code)


def _descendants(ancestor: int) -> list[int]:
    """Return a process's children, and theirs, as far as this system's /proc says."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat_fields(path.name)[1]), []).append(int(path.name))
    found = [ancestor]
    for process in found:
        found += children.get(process, [])
    return found[1:]
