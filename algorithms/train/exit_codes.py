"""Exit codes, and the errors that end a command in one line instead of a traceback."""

import errno
import sqlite3
import sys
from collections.abc import Callable

from safetensors import SafetensorError

from algorithms.config.errors import ServiceError
from algorithms.train.supervised import ERROR, is_restart, report
from algorithms.utils.errors import InputError, RunError

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def in_one_line(run: Callable[[], int], retry: str) -> int:
    """Run a command; an error that its user can fix becomes a line on standard error and an exit code.

    Args:
        run: returns the exit code if nothing fails.
        retry: how to continue after a full disk, as in "fix: make room, then …".

    Raises:
        Exception: a defect of ours, as it is; so is an interrupt.
    """
    try:
        code = run()
        sys.stdout.flush()  # of a full disk it is said here, and not on the way out
        return code
    except Exception as error:
        ending = _ending(error, retry)
        if ending is None:
            raise
        code, line = ending
        print(line, file=sys.stderr)
        report(ERROR, line)
        return code


def _ending(error: Exception, retry: str) -> tuple[int, str] | None:
    """Exit code and line; None for a defect of ours."""
    if isinstance(error, ServiceError) and is_restart():  # it was there before
        return FAILED, f"error: {error}"
    if isinstance(error, InputError):
        return WRONG_INPUT, f"error: {error}"
    if isinstance(error, RunError):
        return FAILED, f"error: {error}"
    if not is_disk_full(error):
        return None
    said = next(iter(str(error).splitlines()), type(error).__name__)
    what, fix = "No space left on device", "make room"
    if is_not_written(error):
        what, fix = "the history cannot be written", "check the free space, the quota and the health of its disk"
    return FAILED, f"error: {what} ({said}); what was written before is intact; fix: {fix}, then {retry}"


_FULL = (errno.ENOSPC, errno.EDQUOT)
# What SQLite makes of a quota, and of a file system that notices at the sync that it is full. A failing disk gives
# the same codes, without a cause.
_NOT_WRITTEN = (
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or its cause, means that a file system or a quota has, or may have, no room left."""
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
    """Return whether SQLite reports only that it cannot write, without the reason."""
    if isinstance(error, sqlite3.OperationalError):
        return _code(error) in _NOT_WRITTEN
    return error.__cause__ is not None and is_not_written(error.__cause__)


def _code(error: sqlite3.Error) -> int:
    """SQLite's extended error code; 0 for an error that it did not raise itself."""
    return getattr(error, "sqlite_errorcode", 0)
