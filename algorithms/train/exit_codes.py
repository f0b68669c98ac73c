"""Exit codes, the errors that end a command in one line instead of a traceback, and what a supervisor is told."""

import contextlib
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from algorithms.config.errors import ServiceError, shown
from algorithms.utils.errors import InputError, RunError, is_disk_full, is_not_written
from algorithms.utils.files import write_text

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)  # what a user wrote is too long, or a link to itself


def in_one_line(run: Callable[[], int], retry: str, interrupted: str = "interrupted") -> int:
    """Run a command; an interrupt, or an error that its user can fix, becomes a line on standard error and a code.

    Args:
        run: returns the exit code if nothing fails.
        retry: how to continue after a full disk, as in "fix: make room, then …".
        interrupted: the line after an interrupt.

    Raises:
        Exception: a defect of ours, as it is.
    """
    try:
        code = run()
        sys.stdout.flush()  # of a full disk it is said here, and not on the way out
        return code
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        ending = _ending(error, retry)
        if ending is None:
            raise
        from algorithms.config.secrets import text_without_secrets

        code, line = ending[0], text_without_secrets(ending[1])
        print(line, file=sys.stderr)
        report_to_supervisor(ERROR, line)
        return code


def _ending(error: Exception, retry: str) -> tuple[int, str] | None:
    """Exit code and line; None for a defect of ours."""
    if isinstance(error, ServiceError) and is_restart():  # it was there before
        return FAILED, f"error: {error}"
    if isinstance(error, InputError):
        return WRONG_INPUT, f"error: {error}"
    if isinstance(error, RunError):
        return FAILED, f"error: {error}"
    if isinstance(error, OSError) and error.errno in _NO_PATH:
        return WRONG_INPUT, f"error: {shown(error.filename)}: {error.strerror}; fix: another path"
    if not is_disk_full(error):
        return None
    said = next(iter(str(error).splitlines()), type(error).__name__)
    what, fix = "No space left on device", "make room"
    if is_not_written(error):
        what, fix = "the history cannot be written", "check the free space, the quota and the health of its disk"
    return FAILED, f"error: {what} ({said}); what was written before is intact; fix: {fix}, then {retry}"


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


def report_to_supervisor(name: str, text: str) -> None:
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
