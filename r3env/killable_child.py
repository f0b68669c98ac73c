"""The process behind `r3env.killable`: has what it is asked for worked out in a fork of itself, one fork a call.

It reads pickled calls from its standard input; everything that it writes is JSON.
"""

import contextlib
import functools
import importlib
import json
import math
import os
import pickle
import resource
import secrets
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

MEMORY_LIMIT_BYTES = 2 << 30
_GRACE_S = 1.0
_LONGEST_RESULT = 4096


def main() -> None:
    """Answers calls until the parent goes away."""
    requests = Connection(0, writable=False)
    # Nothing that a library prints may get between the messages: they leave by a descriptor of their own.
    replies = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    with contextlib.suppress(ValueError, OSError):  # not every system limits the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            _answer(requests, replies)


def _answer(requests: Connection, replies: Connection) -> None:
    maker, made_from, arguments, timeout_s = pickle.loads(requests.recv_bytes())
    try:
        function = _attribute(maker)(*made_from)
    except Exception as error:
        _send(replies, {"raised": _text(error)})
        return
    fork = _Fork.of(function, arguments, timeout_s, (requests, replies))
    _send(replies, {"ready": True})
    # The token comes after the fork, which has none of our pipes: what runs there cannot have it.
    try:
        token = requests.recv_bytes().decode()
        outcome = fork.outcome(timeout_s)
    finally:
        fork.kill()
    _send(replies, {"token": token, **outcome})


@dataclass(frozen=True)
class _Fork:
    """A process that waits for a byte, then makes one call and writes its result with the nonce."""

    pid: int
    start: int
    results: int
    nonce: str

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        timeout_s: float,
        inherited: tuple[Connection, ...],
    ) -> "_Fork":
        nonce = secrets.token_hex(16)
        started, start = os.pipe()
        results, result = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                for descriptor in (start, results, *(connection.fileno() for connection in inherited)):
                    os.close(descriptor)
                # For a parent that was killed meanwhile: a signal whose default action is death also ends an
                # operation that never returns to Python.
                signal.setitimer(signal.ITIMER_REAL, timeout_s + _GRACE_S)
                if os.read(started, 1):
                    os.write(result, json.dumps({"nonce": nonce, **_result(function, arguments)}).encode())
            finally:
                os._exit(0)
        os.close(started)
        os.close(result)
        return cls(pid, start, results, nonce)

    def outcome(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        os.write(self.start, b"!")
        written = b""
        while len(written) <= _LONGEST_RESULT:
            if not select.select([self.results], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return {"timeout": True}
            part = os.read(self.results, _LONGEST_RESULT + 1)
            if not part:
                break
            written += part
        return self._checked(written) if written else {"died": True}

    def kill(self) -> None:
        for kill in (os.killpg, os.kill):  # it may not have got to making its group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.start)
        os.close(self.results)

    def _checked(self, written: bytes) -> dict[str, Any]:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(written)
            if isinstance(found, dict) and len(found) == 2 and found.pop("nonce", None) == self.nonce:
                ((kind, value),) = found.items()
                if (kind == "score" and type(value) is float) or (kind == "raised" and type(value) is str):
                    return {kind: value}
        return {"tampered": True}


def _result(function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, Any]:
    try:
        value = float(function(*arguments))
        if not math.isfinite(value):
            raise ValueError(f"the score is {value}")
        return {"score": value}
    except Exception as error:
        return {"raised": _text(error)}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".encode("ascii", "replace").decode()[:500]


def _send(replies: Connection, message: dict[str, Any]) -> None:
    replies.send_bytes(json.dumps(message).encode())


@functools.cache
def _attribute(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


if __name__ == "__main__":
    main()
