"""Scores worked out in child processes that are killed at a deadline.

A scorer that evaluates what a policy wrote can be made to run for ever (`9**9**9`), and neither a thread nor a signal
stops one long operation on integers. Mathematical answers have graders of their own in `r3env.grading`.

What is fenced: each call runs in a fork of its own, with a limit of memory, so it cannot stay for later calls; nothing
that comes back is unpickled or run here, only one finite number of one well-formed message with a random token that
the fork never had is believed; after anything else the child is killed and replaced.

What is not: the fork runs as this process's user, with its files, network and processes in reach, and code that runs
in it can look through the scorer's own memory and so make up the score of its own call. So never give an answer to a
scorer that would run it as code: `r3env.reasoning_gym_answers` refuses such answers first.
"""

import atexit
import contextlib
import hmac
import json
import math
import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])
_START_LIMIT_S = 120.0
_GRACE_S = 5.0
_LONGEST_REPLY = 8192


class CallTimeoutError(Exception):
    """The call was not finished at its deadline; its process is gone."""


class CallRaisedError(Exception):
    """The function raised; the message holds the error's type and text."""


class CallDiedError(Exception):
    """The process died, for example for want of memory, or could not start."""


class CallTamperedError(Exception):
    """What came back is no score: the call's own arguments must have got at the pipes."""


class KillableCalls:
    """Has scores worked out in up to `size` child processes, from any thread; each call in a fork of one of them.

    The children start when they are needed and are kept. They import and make what this process tells them to, by
    pickle; the way back is JSON. See the module for what that fences.
    """

    def __init__(self, size: int) -> None:
        """Makes the pool; nothing is started yet."""
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Child] = []

    def call(self, maker: str, made_from: Sequence[Any], *arguments: Any, timeout_s: float) -> float:
        """What the scorer says of these arguments, a finite number.

        Args:
            maker: `module:name` of the function that makes the scorer, outside of the deadline. It runs in the child
                itself, not in the fork, so that it can keep what it makes.
            made_from: What the maker gets; nothing that a policy wrote.
            arguments: What the scorer gets.
            timeout_s: Seconds the scorer may take, from when a process that is ready takes it up.

        Raises:
            CallTimeoutError: It took longer.
            CallRaisedError: The maker or the scorer raised, or the score is not a finite number.
            CallDiedError: The process died or could not start.
            CallTamperedError: What came back is no score.
        """
        with self._free, self._child() as child:
            return child.call(maker, tuple(made_from), arguments, timeout_s)

    def close(self) -> None:
        """Ends the idle processes; the next call starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.kill()

    @contextlib.contextmanager
    def _child(self) -> "Iterator[_Child]":
        child = self._quiet_child()
        try:
            yield child
        except (CallRaisedError, CallTimeoutError):
            # Replies like any other; a child that is itself overdue was killed.
            self._give_back(child)
            raise
        except BaseException:
            child.kill()
            raise
        self._give_back(child)

    def _quiet_child(self) -> "_Child":
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return _Child()
            if child.quiet():
                return child
            child.kill()  # it died, or a message came that nobody asked for

    def _give_back(self, child: "_Child") -> None:
        if child.alive:
            with self._lock:
                self._idle.append(child)


class _Child:
    """A process of its own behind two pipes, launched with an `exec`: it inherits no threads and no CUDA."""

    def __init__(self) -> None:
        self.alive = True
        requests, self._requests = connection.Pipe(duplex=False)
        self._replies, replies = connection.Pipe(duplex=False)
        with contextlib.closing(requests), contextlib.closing(replies):
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "r3env.killable_child"],
                    stdin=requests.fileno(),
                    stdout=replies.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=_environment(),
                    start_new_session=True,  # a Ctrl-C in the terminal is for the parent to handle
                )
            except OSError as error:
                raise CallDiedError(f"a process could not be launched: {error}") from error

    def call(self, maker: str, made_from: tuple[Any, ...], arguments: tuple[Any, ...], timeout_s: float) -> float:
        self._send(pickle.dumps((maker, made_from, arguments, timeout_s)))
        # The first reply says that the scorer is made: that is not the answer's time.
        match self._reply(_START_LIMIT_S):
            case {"ready": True, **rest} if not rest:
                pass
            case {"raised": str(text), **rest} if not rest:
                raise CallRaisedError(text)
            case _:
                raise CallTamperedError
        token = secrets.token_hex(16)
        self._send(token.encode())
        return self._score(self._reply(timeout_s + _GRACE_S), token)

    def quiet(self) -> bool:
        """Whether it has nothing to say, as it must between the calls."""
        return not self._replies.poll(0)

    def kill(self) -> None:
        self.alive = False
        self._process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()
        self._replies.close()

    def _score(self, reply: object, token: str) -> float:
        if not isinstance(reply, dict) or not hmac.compare_digest(str(reply.pop("token", "")).encode(), token.encode()):
            raise CallTamperedError
        if not self.quiet():
            raise CallTamperedError
        match reply:
            case {"score": float(score), **rest} if not rest and math.isfinite(score):
                return score
            case {"raised": str(text), **rest} if not rest:
                raise CallRaisedError(text)
            case {"timeout": True, **rest} if not rest:
                raise CallTimeoutError
            case {"died": True, **rest} if not rest:
                raise CallDiedError("the process died")
        raise CallTamperedError

    def _send(self, message: bytes) -> None:
        try:
            self._requests.send_bytes(message)
        except OSError as error:
            raise CallDiedError("the process is gone") from error

    def _reply(self, timeout_s: float) -> object:
        deadline = time.monotonic() + timeout_s
        if not self._replies.poll(timeout_s):
            self.kill()
            raise CallTimeoutError
        try:
            return json.loads(self._replies.recv_bytes(_LONGEST_REPLY))
        except (ValueError, RecursionError) as error:
            raise CallTamperedError from error
        except (EOFError, OSError) as error:
            overdue = time.monotonic() >= deadline
            self.kill()
            raise CallTimeoutError if overdue else CallDiedError("the process died") from error


def _environment() -> dict[str, str]:
    # The child has to find the modules that this process found, wherever a runtime environment put them.
    path = dict.fromkeys([*(os.path.abspath(entry) for entry in sys.path), _PACKAGE_ROOT])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",  # its threads' buffers would count against the memory limit
    }


_shared: KillableCalls | None = None
_shared_lock = threading.Lock()


def shared_calls() -> KillableCalls:
    """The pool of this process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = KillableCalls(size=min(4, os.cpu_count() or 1))
        return _shared


def close() -> None:
    """Ends the idle processes of the shared pool."""
    if _shared is not None:
        _shared.close()


def _forget() -> None:
    # A forked process shares the pipes of its parent's children: two talking at once would mix up the replies.
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
