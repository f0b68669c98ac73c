"""Standard streams that never end a command: any encoding, closed descriptors, a reader that goes away."""

import contextlib
import errno
import io
import logging
import os
import stat
import sys
from collections.abc import Callable
from typing import Any, TextIO

from r3env.printable import PrintableFormatter

# The reader of a pipe, or the terminal, is gone.
_GONE = (errno.EPIPE, errno.EIO)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full disk, or a quota


def guard_streams() -> None:
    """Guard standard input, output and error; call it first, in a process of one's own.

    What an encoding lacks is written as an escape, as in a warning what would steer a terminal. A closed descriptor is
    opened on nothing, or the next file would get its number, and what is printed with it. Once a reader is gone
    (`| head`), the rest is dropped.
    """
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            continue
        # It takes the lowest number that is free: this one. Processes that are started get it as well.
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    sys.stdout = guarded(1, sys.stdout)
    sys.stderr = guarded(2, sys.stderr)
    if logging.lastResort is not None:  # which prints warnings where nobody has set up logging
        logging.lastResort.setFormatter(PrintableFormatter())


def call(command: Callable[[], int]) -> int:
    """Guard the streams and call a command; return its exit code: 130 interrupted, 1 where the output is full."""
    guard_streams()
    try:
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print(f"error: {error.strerror}; fix: make room, then repeat the same command", file=sys.stderr)
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)  # what could not be written would be tried again on the way out
        return 1
    return code


def guarded(descriptor: int, like: TextIO | None = None) -> TextIO:
    """Return a stream that writes to `descriptor` and outlives its reader, in the encoding of `like`, else UTF-8."""
    encoding, in_lines, at_once = "utf-8", True, False
    if isinstance(like, io.TextIOWrapper):
        like.flush()
        encoding, in_lines, at_once = like.encoding, like.line_buffering, like.write_through
    outlet: Any = _Outlet(descriptor, "w", closefd=False)
    buffer = outlet if at_once else io.BufferedWriter(outlet)
    return io.TextIOWrapper(buffer, encoding, "backslashreplace", line_buffering=in_lines, write_through=at_once)


class _Outlet(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in _GONE and not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), self.fileno())  # compiled code writes there as well
            elif self.fileno() == 1:  # the disk is full: a command's result is not lost without a word, a log is
                raise
        return len(data)
