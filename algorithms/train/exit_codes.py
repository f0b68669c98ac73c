"""What ends a script in one line instead of a traceback, and with which exit code."""

import errno
import sqlite3
import sys
from collections.abc import Callable

from safetensors import SafetensorError

from algorithms.utils.errors import InputError, RunError

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def in_one_line(run: Callable[[], int], go_on: str) -> int:
    """Run a script; an error that its user can do something about is a line on standard error and an exit code.

    Args:
        run: gives the exit code where nothing is wrong.
        go_on: how the script goes on after a disk was full.

    Raises:
        Exception: a defect of ours, as it is; so is an interrupt.
    """
    try:
        return run()
    except Exception as error:
        ending = _ending_of(error, go_on)
        if ending is None:
            raise
        code, line = ending
        print(line, file=sys.stderr)
        return code


def _ending_of(error: Exception, go_on: str) -> tuple[int, str] | None:
    """Exit code and line; None for a defect of ours."""
    if isinstance(error, InputError):
        return WRONG_INPUT, f"error: {error}"
    if isinstance(error, RunError):
        return FAILED, f"error: {error}"
    if not is_disk_full(error):
        return None
    said = next(iter(str(error).splitlines()), type(error).__name__)
    what, fix = "No space left on device", "make room"
    if is_not_written(error):
        what, fix = "the history cannot be written", "check the room, the quota and the health of its disk"
    return FAILED, f"error: {what} ({said}); what was written before is whole; fix: {fix}, then {go_on}"


_FULL = (errno.ENOSPC, errno.EDQUOT)
# What SQLite makes of a quota, and of a file system that notices at the sync that it is full. A failing disk is told
# in the same way: no cause comes with it.
_NOT_WRITTEN = (
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, means that a file system, or a quota of it, has no room left, or may."""
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError

    if isinstance(error, OutOfDiskError | ObjectStoreFullError):  # Ray's object store spills to the disk
        return True
    if isinstance(error, OSError):
        return error.errno in _FULL
    if isinstance(error, sqlite3.OperationalError):
        return _code(error) == sqlite3.SQLITE_FULL or is_not_written(error)
    if isinstance(error, SafetensorError):
        return any(f"os error {number}" in str(error) for number in _FULL)
    return error.__cause__ is not None and is_disk_full(error.__cause__)


def is_not_written(error: BaseException) -> bool:
    """Whether SQLite says only that it cannot write, and the reason is for its user to look for."""
    if isinstance(error, sqlite3.OperationalError):
        return _code(error) in _NOT_WRITTEN
    return error.__cause__ is not None and is_not_written(error.__cause__)


def _code(error: sqlite3.Error) -> int:
    """SQLite's own, with what it says of the cause; none in an error that it did not raise itself."""
    return getattr(error, "sqlite_errorcode", 0)
