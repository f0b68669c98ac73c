"""The process behind `subprocess_scorer`: makes scorers, and runs calls in a fork.

It reads pickled calls from its standard input; everything that it writes is JSON.
A scorer gives a number, or a mapping of plain data.
"""

import base64
import contextlib
import functools
import importlib
import math
import os
import pickle
import resource
import secrets
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from r3env.child_processes.child import Message, Worker, open_pipes, send
from r3env.child_processes.process import ProcessDiedError, ProcessTamperedError, ProcessTimeoutError

# What a call may add to the address space that its imports take up.
MEMORY_LIMIT_BYTES = 2 << 30
# A call that has computed for a smaller share of its time was waiting.
_IDLE_SHARE = 0.05


def main() -> None:
    """Answer calls until the parent goes away."""
    requests, replies = open_pipes()
    fork = _Fork((requests, replies))
    send(replies, {"ready": True})
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            _answer(requests, replies, fork)


class _Fork:
    """The one fork there is: made for a single call, or kept for the next calls of the same scorer."""

    def __init__(self, inherited: tuple[Connection, Connection]) -> None:
        self._inherited = inherited
        self._worker: Worker | None = None
        self._made_for: object = None

    def prepare(self, scorer: Callable[..., Any], made_for: object) -> Worker:
        """Return a worker: the kept one if it was made for this and not for None, else a new one."""
        if self._worker is None or made_for is None or made_for != self._made_for:
            self.end()
            limit = MEMORY_LIMIT_BYTES + _address_space_bytes()
            self._worker, self._made_for = Worker(partial(_score, scorer), limit, self._inherited), made_for
        return self._worker

    def end(self) -> None:
        """Kill the worker, if there is one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _answer(requests: Connection, replies: Connection, fork: _Fork) -> None:
    request = requests.recv_bytes()  # waits: as long as its parent lives
    nonce, maker, made_from, arguments, timeout_s, keep = pickle.loads(request)
    try:
        scorer = _attribute(maker)(*made_from)
    except Exception as error:
        send(replies, {"nonce": nonce, "raised": _text(error)})
        return
    made_for = (maker, made_from) if keep else None
    worker = fork.prepare(scorer, made_for)
    try:
        send(replies, {"nonce": nonce, "made": True})
        # The token comes after the fork, which has none of our pipes: what runs there cannot have it.
        token = requests.recv_bytes().decode()  # waits: as above
        due = time.monotonic() + timeout_s
        was_used = worker.used
        outcome = _outcome(worker, arguments, due, requests)
        if was_used and not outcome.keys() & {"score", "timeout"}:
            # An earlier call may have broken the fork, or filled its memory.
            fork.end()
            outcome = _outcome(fork.prepare(scorer, made_for), arguments, due, requests)
    except BaseException:
        fork.end()
        raise
    if not keep or "score" not in outcome:
        fork.end()
    send(replies, {"token": token, **outcome})


def _outcome(worker: Worker, arguments: bytes, due: float, parent: Connection) -> Message:
    """Return what a call in the worker comes to: `score`, `plain`, `raised`, `timeout`, `died` or `tampered`."""
    nonce = secrets.token_hex(16)
    call = {"nonce": nonce, "arguments": base64.b64encode(arguments).decode()}
    limit_s = due - time.monotonic()
    try:
        return _checked(worker.exchange(call, limit_s, parent), nonce)
    except ProcessTimeoutError:
        idle = _has_threads() and not worker.has_children() and worker.cpu_seconds() < _IDLE_SHARE * limit_s
        return {"timeout": True, "idle": idle}
    except ProcessDiedError:
        return {"died": True}
    except ProcessTamperedError:
        return {"tampered": True}


def _has_threads() -> bool:
    """Return whether an import has started threads, which forks do not have; False where the system does not say."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task")) > 1
    return False


def _score(scorer: Callable[..., Any], call: Message) -> Message:
    os.setpgid(0, 0)  # so that what the call starts is killed with it
    nonce = call["nonce"]
    try:
        value = scorer(*pickle.loads(base64.b64decode(call["arguments"])))
        if isinstance(value, dict):
            return {"nonce": nonce, "plain": value}
        value = float(value)
        if not math.isfinite(value):
            raise ValueError(f"the score is {value}")
        return {"nonce": nonce, "score": value}
    except Exception as error:
        return {"nonce": nonce, "raised": _text(error)}


def _checked(reply: Message, nonce: str) -> Message:
    match reply:
        case (
            {"nonce": given, "score": float(), **rest}
            | {"nonce": given, "plain": dict(), **rest}
            | {"nonce": given, "raised": str(), **rest}
        ):
            if given == nonce and not rest:
                return {key: value for key, value in reply.items() if key != "nonce"}
    raise ProcessTamperedError


def _address_space_bytes() -> int:
    """Return what this process takes up; 0 where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 0


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".encode("ascii", "replace").decode()[:500]


@functools.cache
def _attribute(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


if __name__ == "__main__":
    main()
