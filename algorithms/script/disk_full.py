"""Every library has its own error for a disk that is full; this is the one place that knows them."""

import errno
import sqlite3

from safetensors import SafetensorError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, means that a file system, or a quota of it, has no room left."""
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError

    if isinstance(error, OutOfDiskError | ObjectStoreFullError):  # Ray's object store spills to the disk
        return True
    if isinstance(error, OSError):
        return error.errno in _FULL
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    if isinstance(error, SafetensorError):
        return any(f"os error {number}" in str(error) for number in _FULL)
    return error.__cause__ is not None and is_disk_full(error.__cause__)
