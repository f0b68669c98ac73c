"""Calls in child processes that are killed at a deadline.

A scorer that evaluates what a policy wrote can be made to run for ever (`9**9**9`), and neither a thread nor a signal
stops one long operation on integers. Mathematical answers have graders of their own in `r3env.grading`.
"""

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])
_START_LIMIT_S = 120.0


class CallTimeoutError(Exception):
    """The call was not finished at its deadline; its process is gone."""


class CallRaisedError(Exception):
    """The function raised; the message holds the error's type and text."""


class CallDiedError(Exception):
    """The process died, for example for want of memory, or could not start."""


class KillableCalls:
    """Calls module-level functions, each in one of up to `size` child processes, from any thread.

    The processes start when they are needed and are kept. Arguments and results are pickled: the children are as
    trustworthy as this process, what they work on need not be.
    """

    def __init__(self, size: int) -> None:
        """Makes the pool; nothing is started yet."""
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Child] = []

    def call(self, function: str, *arguments: Any, timeout_s: float) -> Any:
        """The result of `module:function` on these arguments.

        Args:
            function: Where the function is, `module:name`.
            arguments: What it gets.
            timeout_s: Seconds it may take, from when a process that is ready takes it up.

        Raises:
            CallTimeoutError: It took longer.
            CallRaisedError: The function raised.
            CallDiedError: The process died or could not start.
        """
        with self._free, self._child() as child:
            return child.call(function, arguments, timeout_s)

    def close(self) -> None:
        """Ends the idle processes; the next call starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.kill()

    @contextlib.contextmanager
    def _child(self) -> "Iterator[_Child]":
        with self._lock:
            child = self._idle.pop() if self._idle else None
        child = child or _Child()
        try:
            yield child
        except CallRaisedError:  # a reply like any other
            self._give_back(child)
            raise
        except BaseException:
            child.kill()
            raise
        self._give_back(child)

    def _give_back(self, child: "_Child") -> None:
        with self._lock:
            self._idle.append(child)


class _Child:
    """A process of its own behind two pipes, launched with an `exec`: it inherits no threads and no CUDA."""

    def __init__(self) -> None:
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

    def call(self, function: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        # The first reply says that the function's module is imported: that is not the answer's time.
        self._send(pickle.dumps((function, arguments, timeout_s)))
        self._reply(_START_LIMIT_S)
        return self._reply(timeout_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._replies.close()

    def _send(self, message: bytes) -> None:
        try:
            self._requests.send_bytes(message)
        except OSError as error:
            raise CallDiedError("the process is gone") from error

    def _reply(self, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        if not self._replies.poll(timeout_s):
            raise CallTimeoutError
        try:
            succeeded, result = pickle.loads(self._replies.recv_bytes())
        except (EOFError, OSError) as error:
            raise CallTimeoutError if time.monotonic() >= deadline else CallDiedError("the process died") from error
        if not succeeded:
            raise CallRaisedError(result)
        return result


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
