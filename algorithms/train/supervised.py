"""A run's side of its supervisor: report progress and errors, and end with the supervisor."""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

from algorithms.utils.files import write_text

# `PID:FOLDER` of the supervisor. Whatever else inherits the variable has another parent.
VARIABLE = "R3_GRPO_SUPERVISOR"
DIRECTORY, ERROR, RESTART = "directory", "error", "restart"
_PR_SET_PDEATHSIG = 1


def is_supervised() -> bool:
    """Return whether a supervisor started this process."""
    return _folder() is not None


def is_restart() -> bool:
    """Return whether a supervisor started this process in place of one that had died."""
    folder = _folder()
    return folder is not None and (folder / RESTART).exists()


def end_with_supervisor() -> None:
    """Let this process get a SIGTERM when its supervisor dies, in whatever way: nothing else would stop it."""
    if not is_supervised() or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if not is_supervised():  # it died just now
        os.kill(os.getpid(), signal.SIGTERM)


def report(name: str, text: str) -> None:
    """Report something to the supervisor, if there is one.

    Args:
        name: `DIRECTORY`, the run directory that can be resumed from now on, or `ERROR`, why the run fails.
        text: one line.
    """
    folder = _folder()
    if folder is not None:
        with contextlib.suppress(OSError):  # a full disk: the run is more than what is said about it
            write_text(folder / name, text)


def _folder() -> Path | None:
    supervisor, _, folder = os.environ.get(VARIABLE, "").partition(":")
    return Path(folder) if supervisor == str(os.getppid()) else None
