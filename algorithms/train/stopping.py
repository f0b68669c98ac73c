"""Stop a process: on a signal between steps, and then for good, whatever its threads and Ray do.

Ctrl-C and SIGTERM act between steps: within one, weights, history and counters do not fit together. A SIGHUP,
of a terminal that is closed, counts as a SIGTERM unless it was ignored from the start, as `nohup` does.
"""

import contextlib
import functools
import logging
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from algorithms.train.exit_codes import ERROR, FAILED, INTERRUPTED, report_to_supervisor
from algorithms.utils.process import stat_fields
from r3env.streams import guard_streams

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
        if getattr(sys.unraisablehook, "func", None) is not _interrupt_again:
            sys.unraisablehook = functools.partial(_interrupt_again, sys.unraisablehook)


def _interrupt_again(otherwise: Callable[[Any], Any], lost: Any) -> None:
    """Send another SIGTERM for a KeyboardInterrupt that a destructor or a callback of C code could not pass on."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        otherwise(lost)


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


# With its control process stopped Ray would wait for ever.
SHUTDOWN_S = 20.0


def call_and_leave(command: Callable[[], int]) -> NoReturn:
    """Call a command, which returns the exit code, then end the process however that went."""
    guard_streams()
    try:
        leave(_code(command))
    except KeyboardInterrupt:  # another one, while the first was answered
        end_now(INTERRUPTED)


def _code(command: Callable[[], int]) -> int:
    try:
        return command()
    except SystemExit as end:  # argparse's, and that of Ray's own handler of SIGTERM while the algorithm is built
        return end.code if isinstance(end.code, int) else FAILED
    except Exception as error:
        traceback.print_exc()
        report_to_supervisor(ERROR, traceback.format_exception_only(error)[0].splitlines()[0])
        return FAILED


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
