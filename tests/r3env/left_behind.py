"""Scorers that leave a process behind, which writes into their child's pipe of replies when it is told to."""

import os
import stat
from collections.abc import Callable
from pathlib import Path


def make_leaver() -> Callable[[str, bytes], float]:
    """Keep a copy of the child's pipe where the fork inherits it; return `leave`."""
    kept = _kept_pipe()

    def leave(folder: str, frame: bytes) -> float:
        """Leave a process behind that writes the frame when it is told to; return the child's process id."""
        ready, outside = os.pipe()
        if os.fork() == 0:
            os.setsid()  # so that it outlives the fork and what belongs to it
            (Path(folder) / "left").write_text(str(os.getpid()))
            os.write(outside, b"1")
            with open(Path(folder) / "go", "rb") as told:  # until somebody opens it for writing
                if not told.read():
                    os._exit(0)
            os.write(kept, frame)
            with open(Path(folder) / "done", "wb"):
                os._exit(0)
        os.read(ready, 1)
        return os.getppid()

    return leave


def make_forger(frame: bytes) -> Callable[[], float]:
    """Return a scorer that gives 0.25 and writes a frame of its own besides."""
    kept = _kept_pipe()
    return lambda: 0.25 * (os.write(kept, frame) > 0)


def _kept_pipe() -> int:
    numbers = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    (pipe,) = [number for number in numbers if _is_pipe(number)]
    return os.dup(pipe)


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:  # that of the listing itself
        return False


def tell(folder: str, what: bytes = b"now") -> None:
    """Have the process that was left behind write its frame, or end without; return when it has."""
    (Path(folder) / "go").write_bytes(what)
    (Path(folder) / "done").read_bytes()


def make_teller(folder: str, child: int, when: str) -> Callable[[], float]:
    """Return a scorer that gives 0.5; while it is made or runs, in one child alone, the frame comes."""
    if when == "making" and os.getpid() == child:
        tell(folder)

    def score() -> float:
        if when == "scoring" and os.getppid() == child:
            tell(folder)
        return 0.5

    return score


def make_counter(folder: str, child: int, when: str) -> Callable[[], dict[str, float]]:
    """Return a scorer as of `make_teller` that gives plain data, and a line of a file for each time that it ran."""
    score = make_teller(folder, child, when)

    def count() -> dict[str, float]:
        with (Path(folder) / "ran").open("a") as file:
            file.write("once\n")
        return {"score": score()}

    return count
