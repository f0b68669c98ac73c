"""Every library has its own error for a disk that is full; this is the one place that knows them."""

import errno
import sqlite3

from safetensors import SafetensorError

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
