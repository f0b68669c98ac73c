"""The process behind `r3env.killable`: reads pickled calls from its standard input, writes results to its output."""

import contextlib
import functools
import importlib
import os
import pickle
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

MEMORY_LIMIT_BYTES = 2 << 30
_GRACE_S = 1.0


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
    while True:
        try:
            request = requests.recv_bytes()
        except EOFError:
            return
        try:
            name, arguments, timeout_s = pickle.loads(request)
            function = _function(name)
        except Exception as error:
            replies.send_bytes(pickle.dumps((False, f"{type(error).__name__}: {error}")))
            continue
        replies.send_bytes(pickle.dumps((True, None)))
        # The parent kills an overdue child itself. This is for a parent that was killed meanwhile: a signal whose
        # default action is death also ends an operation that never returns to Python.
        signal.setitimer(signal.ITIMER_REAL, timeout_s + _GRACE_S)
        result = _result(function, arguments)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        replies.send_bytes(result)


def _result(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((True, function(*arguments)))
    except Exception as error:
        return pickle.dumps((False, f"{type(error).__name__}: {error}"[:1000]))


@functools.cache
def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


if __name__ == "__main__":
    main()
