"""Where a run may lie: what can be said of its folder before anything is written or loaded."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from algorithms.config.errors import ConfigError, shown
from algorithms.history.store import FILE_NAME
from algorithms.utils.errors import CheckpointError
from algorithms.utils.process import may
from r3env.printable import printable

_LONGEST_PATH = 500  # bytes; SQLite's limit is 512, and it adds to the name


def check_place(parent: str | Path, name: str) -> None:
    """Check that a run can be created there, as far as that is known without doing it.

    Raises:
        ConfigError: the name is no single path component, or the parent is too long, or cannot be written.
    """
    if not name or name in {".", ".."} or re.search(r"[/\\\0\n\t]", name) or printable(name) != name:
        raise ConfigError(f"run.name: {shown(name)} can't name a folder; fix: letters, digits, '-', '_' and '.'")
    try:
        path = Path(parent).expanduser().absolute() / name
        length = len(os.fsencode(path / f"{FILE_NAME}-journal"))
        if length > _LONGEST_PATH:
            raise ConfigError(
                f"run.dir: with run.name and the history's file it is a path of {length} bytes, and SQLite opens "
                f"{_LONGEST_PATH} at most; fix: a shorter folder"
            )
        there = next(folder for folder in path.parents if folder.exists())
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise no_place(parent, getattr(error, "strerror", None) or error) from error
    if not there.is_dir():
        raise no_place(parent, f"{there} is not a folder")
    if not may(there, os.W_OK | os.X_OK):
        raise no_place(parent, f"{there} cannot be written")


def no_place(parent: str | Path, reason: object) -> ConfigError:
    """Return the error of a `run.dir` in which no run can be created."""
    fix = "fix: name a folder that you may write to, or one that can be created"
    return ConfigError(f"run.dir: {str(parent)!r}: no run can be created there ({reason}); {fix}")


def check_writable(paths: Iterable[Path]) -> None:
    """Check that a resume may read and write folders and files; those that are not there are passed over.

    Raises:
        CheckpointError: the line names the first that it may not.
    """
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise unusable(path, "it is no file")  # a device or a pipe may be read for ever
        if path.exists() and not may(path, os.R_OK | os.W_OK):
            raise unusable(path, "it may not be read or written")


def unusable(path: Path, reason: object) -> CheckpointError:
    """Return the error of a part of a run that cannot be read or written."""
    return CheckpointError(
        f"{path}: cannot be used ({reason}); fix: make the run's files this user's own, or copy them"
    )
