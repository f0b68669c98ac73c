"""One process at a time trains in a run directory: a second one would make steps twice."""

import fcntl
import os
import socket
from pathlib import Path
from typing import IO


class RunIsBusy(ValueError):
    """Another process trains there."""


def lock(folder: Path) -> IO[str]:
    """Lock a run directory until the returned file is closed, or this process has ended in whatever way.

    On a file system that knows no locks nothing is locked.

    Raises:
        RunIsBusy: another process holds the lock; the message names it.
    """
    file = (folder / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise RunIsBusy(
            f"{folder}: {holder or 'another process'} trains here; fix: end it, or wait for its end"
        ) from error
    except OSError:
        return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file
