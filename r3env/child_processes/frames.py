"""Messages over pipes, in the format of `multiprocessing.connection`, sent and received before a deadline.

`Connection` itself waits without a limit for the rest of a message that was begun, and for room to write one.
"""

import os
import select
import struct
import time
from multiprocessing.connection import Connection

# Whoever begins a message writes all of it at once: what is left incomplete for so long never will be one.
_COMPLETE_WITHIN_S = 4.0
_LENGTH = struct.Struct("!i")


class FrameError(Exception):
    """The received bytes are no message: too long, of negative length, or left incomplete."""


def send_frame(pipe: Connection, message: bytes, due: float) -> None:
    """Write a message.

    Args:
        pipe: The writable end.
        message: At most 2 GiB.
        due: When to give up, by `time.monotonic`.

    Raises:
        TimeoutError: The other side did not read it in time; it may have a part of it.
        OSError: There is no other side any more.
    """
    os.set_blocking(pipe.fileno(), False)
    left = memoryview(_LENGTH.pack(len(message)) + message)
    while left:
        _wait(pipe, select.POLLOUT, due)
        try:
            left = left[os.write(pipe.fileno(), left) :]
        except BlockingIOError:  # less room than `poll` promised
            continue


def receive_frame(pipe: Connection, longest: int, due: float) -> bytes:
    """Return the next message.

    Args:
        pipe: The readable end.
        longest: Its length at most, in bytes.
        due: When to give up if none has begun, by `time.monotonic`.

    Raises:
        TimeoutError: None has begun.
        EOFError: The other side is closed.
        FrameError: What came is no message.
    """
    _wait(pipe, select.POLLIN, due)
    complete_by = time.monotonic() + _COMPLETE_WITHIN_S
    try:
        (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size, complete_by))
        if not 0 <= length <= longest:
            raise FrameError(f"a message of {length} bytes")
        return _read(pipe, length, complete_by)
    except TimeoutError as error:
        raise FrameError("an incomplete message") from error


def _read(pipe: Connection, size: int, due: float) -> bytes:
    data = b""
    while len(data) < size:
        _wait(pipe, select.POLLIN, due)
        chunk = os.read(pipe.fileno(), size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def _wait(pipe: Connection, event: int, due: float) -> None:
    poll = select.poll()  # waits: it makes one
    poll.register(pipe.fileno(), event)
    if not poll.poll(max(0.0, due - time.monotonic()) * 1000):
        raise TimeoutError
