"""The child's side of a killable process: its messages, and expendable forks that do the work.

The child itself computes nothing: it keeps the imported libraries warm and forks workers. An overdue worker is killed,
and the next one is there within milliseconds instead of the seconds that the libraries take to load.
"""

import contextlib
import fcntl
import json
import math
import os
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from r3env.child_processes.frames import FrameError, receive_frame, send_frame
from r3env.child_processes.process import ProcessDiedError, ProcessTamperedError, ProcessTimeoutError

Message = dict[str, Any]

_GRACE_S = 1.0
_LONGEST_REPLY = 1 << 18


def open_pipes() -> tuple[Connection, Connection]:
    """Open the pipes of requests and replies; a library's prints cannot get between the messages."""
    replies = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    return Connection(0, writable=False), replies


def send(replies: Connection, message: Message) -> None:
    """Send a message to the parent, or a fork's reply to its child, which reads it or is gone."""
    replies.send_bytes(json.dumps(message).encode())


class Worker:
    """A forked process that answers requests by a function, and this side of the pipes to it."""

    def __init__(
        self, answer: Callable[[Any], Message], memory_limit_bytes: int, inherited: tuple[Connection, ...]
    ) -> None:
        """Fork.

        Args:
            answer: What the worker does with each request.
            memory_limit_bytes: Limit of its address space.
            inherited: The pipes to the parent, which the worker must not have.
        """
        self.used = False  # whether it has had a request
        requests, self._requests = Pipe(duplex=False)
        self._replies, replies = Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                # A worker that held the other ends would keep its own pipes, and its parent's, open for ever.
                for connection in (*inherited, self._requests, self._replies):
                    connection.close()
                _serve(answer, memory_limit_bytes, requests, replies)
            finally:
                os._exit(0)
        requests.close()
        replies.close()

    def exchange(self, request: Any, timeout_s: float, parent: Connection) -> Message:
        """Let the worker answer a request.

        Args:
            request: Plain JSON data.
            timeout_s: Seconds that the worker may take.
            parent: The pipe on which the parent is silent until it has its reply, unless it is gone.

        Raises:
            ProcessTimeoutError: It took longer.
            ProcessDiedError: The worker died.
            ProcessTamperedError: What came back is no message.
            EOFError: The parent is gone.
        """
        self.used = True
        due = time.monotonic() + timeout_s
        try:
            send_frame(self._requests, json.dumps([timeout_s, request]).encode(), due)
        except TimeoutError:
            raise ProcessTimeoutError from None
        except OSError as error:
            raise ProcessDiedError from error
        ready = wait([self._replies, parent], max(0.0, due - time.monotonic()))
        if self._replies not in ready:
            raise EOFError if ready else ProcessTimeoutError
        try:
            reply = json.loads(receive_frame(self._replies, _LONGEST_REPLY, due))
        except EOFError:
            # The worker also limits itself; on a busy machine that may be noticed first.
            raise (ProcessTimeoutError if time.monotonic() >= due else ProcessDiedError) from None
        except (FrameError, OSError, ValueError, RecursionError) as error:
            raise ProcessTamperedError from error
        if not isinstance(reply, dict):
            raise ProcessTamperedError
        return reply

    def cpu_seconds(self) -> float:
        """Return what the worker has computed; infinity where the system does not say."""
        with contextlib.suppress(OSError), open(f"/proc/{self._pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
            return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        return math.inf

    def has_children(self) -> bool:
        """Return whether it has started processes, as far as the system says."""
        with contextlib.suppress(OSError), open(f"/proc/{self._pid}/task/{self._pid}/children") as file:
            return bool(file.read())
        return False

    def kill(self) -> None:
        """End the worker, and its group if it has made one."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)  # waits: nothing outlives that signal
        self._requests.close()
        self._replies.close()


def _serve(
    answer: Callable[[Any], Message], memory_limit_bytes: int, requests: Connection, replies: Connection
) -> None:
    with contextlib.suppress(ValueError, OSError):  # not every system limits the address space
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    deadly = (signal.SIGALRM, signal.SIGIO)
    for number in deadly:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, deadly)
    with contextlib.suppress(EOFError):
        while True:
            timeout_s, request = json.loads(requests.recv_bytes())  # waits: as long as its parent lives
            _arm(requests.fileno(), timeout_s + _GRACE_S)
            reply = answer(request)
            _disarm(requests.fileno())
            send(replies, reply)


def _arm(requests: int, seconds: float) -> None:
    """Have the kernel end this process at a time limit, or as soon as the other side closes the pipe.

    The child kills an overdue worker itself. This is for a child that was killed meanwhile: no Python code of this
    process may run again, so only signals whose default action is death will do.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with contextlib.suppress(OSError):  # not every system signals the end of a pipe; the timer is left then
        fcntl.fcntl(requests, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(requests, fcntl.F_SETFL, fcntl.fcntl(requests, fcntl.F_GETFL) | os.O_ASYNC)


def _disarm(requests: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.fcntl(requests, fcntl.F_SETFL, fcntl.fcntl(requests, fcntl.F_GETFL) & ~os.O_ASYNC)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
