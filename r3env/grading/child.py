"""The grader process: reads pairs of answers from its standard input, writes verdicts to its output.

Started by `r3env.grading.grader` as `python -m r3env.grading.child`. It speaks JSON in length-prefixed
messages, one request at a time, and is expendable: the parent kills it whenever an answer takes too long.
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection

MEMORY_LIMIT_BYTES = 512 << 20
_GRACE_S = 1.0


def main() -> None:
    """Announces itself, then answers requests until the parent goes away."""
    requests = Connection(0, writable=False)
    # Nothing that a library prints may get between the messages: they leave by a descriptor of their own.
    replies = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    try:
        from r3env.grading.equivalence import equivalent

        equivalent("\\frac{1}{2}", "\\sqrt{x}+1")  # else the first answer would pay for the parser's tables
    except Exception as error:
        _send(replies, {"failed": f"{type(error).__name__}: {error}"})
        return
    _prepare_to_die()
    _send(replies, {"ready": True})
    while True:
        try:
            gold, answer, timeout_s = json.loads(requests.recv_bytes())
        except EOFError:
            return
        _arm(timeout_s + _GRACE_S)
        try:
            reply: dict[str, object] = {"correct": equivalent(gold, answer)}
        except Exception as error:
            reply = {"error": type(error).__name__}
        _disarm()
        # A process that once grew large would run into its limit with some later, innocent answer.
        reply["retire"] = _peak_memory_bytes() > MEMORY_LIMIT_BYTES // 2
        _send(replies, reply)


def _send(replies: Connection, message: dict[str, object]) -> None:
    replies.send_bytes(json.dumps(message).encode())


def _prepare_to_die() -> None:
    """Bounds the memory, and gives the two deadly signals back their default action."""
    with contextlib.suppress(ValueError, OSError):  # not every system limits the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for deadly in (signal.SIGALRM, signal.SIGIO):
        signal.signal(deadly, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM, signal.SIGIO))


def _arm(seconds: float) -> None:
    """Makes the kernel end this process at a time limit, or as soon as the parent closes the pipe.

    The parent kills an overdue child itself. This is for a parent that was killed meanwhile: no Python code
    of this process may run again, so only signals whose default action is death will do.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with contextlib.suppress(OSError):  # not every system signals the end of a pipe; the timer is left then
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def _disarm() -> None:
    with contextlib.suppress(OSError):
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) & ~os.O_ASYNC)
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
