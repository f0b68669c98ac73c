"""The worker of a grader process: grades one pair of answers after the other, and is expendable."""

import contextlib
import fcntl
import json
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

Message = dict[str, Any]

MEMORY_LIMIT_BYTES = 512 << 20
_GRACE_S = 1.0


def serve(requests: Connection, replies: Connection) -> None:
    """Answers requests, each a gold, an answer and a deadline in seconds, until the other side goes away."""
    from r3env.grading.equivalence import compare

    _prepare_to_die()
    while True:
        try:
            gold, answer, timeout_s = json.loads(requests.recv_bytes())
        except EOFError:
            return
        _arm(requests.fileno(), timeout_s + _GRACE_S)
        try:
            comparison = compare(gold, answer)
            reply: Message = {"correct": comparison.equal, "unread": comparison.unread}
        except Exception as error:
            reply = {"error": type(error).__name__}
        _disarm(requests.fileno())
        # A process that once grew large would run into its limit with some later, innocent answer.
        reply["retire"] = _peak_memory_bytes() > MEMORY_LIMIT_BYTES // 2
        replies.send_bytes(json.dumps(reply).encode())


def _prepare_to_die() -> None:
    """Bounds the memory, and gives the two deadly signals back their default action."""
    with contextlib.suppress(ValueError, OSError):  # not every system limits the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for deadly in (signal.SIGALRM, signal.SIGIO):
        signal.signal(deadly, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM, signal.SIGIO))


def _arm(requests: int, seconds: float) -> None:
    """Makes the kernel end this process at a time limit, or as soon as the other side closes the pipe.

    The keeper kills an overdue worker itself. This is for a keeper that was killed meanwhile: no Python code of this
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


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
