"""Errors that end a command with one line: those that its user can fix, a full disk among them."""

import sqlite3

from safetensors import SafetensorError

from r3env.printable import printable
from r3env.streams import NO_ROOM


class InputError(ValueError):
    """The user's input cannot be used; the message is one line that names it and the fix."""

    def __str__(self) -> str:
        return printable(super().__str__())


class RunError(RuntimeError):
    """A run cannot continue; the message is one line with the reason and the fix."""

    def __str__(self) -> str:
        return printable(super().__str__())


class CheckpointError(InputError):
    """A checkpoint that is missing, incomplete or of another format."""


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
        return error.errno in NO_ROOM
    if isinstance(error, sqlite3.OperationalError):
        return _code(error) == sqlite3.SQLITE_FULL or is_not_written(error)
    if isinstance(error, SafetensorError):
        return any(f"os error {number}" in str(error) for number in NO_ROOM)
    return error.__cause__ is not None and is_disk_full(error.__cause__)


def is_not_written(error: BaseException) -> bool:
    """Return whether SQLite reports only that it cannot write, without the reason."""
    if isinstance(error, sqlite3.OperationalError):
        return _code(error) in _NOT_WRITTEN
    return error.__cause__ is not None and is_not_written(error.__cause__)


def _code(error: sqlite3.Error) -> int:
    """SQLite's extended error code; 0 for an error that it did not raise itself."""
    return getattr(error, "sqlite_errorcode", 0)
