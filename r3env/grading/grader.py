"""One grader: a child process whose work can be killed, and the talk with it.

Why not the obvious ways. A thread cannot be interrupted inside one operation on huge integers, which holds the GIL
besides. The children of `multiprocessing`, and so of `concurrent.futures` and `pebble.ProcessPool`, are either forked,
which copies the locks and the Ray state of a process with many threads, or spawned, which imports the user's main
script once more (and trains within itself if the script has no guard). So a child is a program of its own behind two
pipes, launched with an `exec` and told nothing but pairs of answers. It has one thread, so it can fork the workers that
compute, and kill them; one caller at a time talks to it, and kills the lot should it not answer.
"""

import contextlib
import json
import multiprocessing.connection as connection
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_GRACE_S = 1.0  # beyond the deadline, for the process to act on it
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


class GraderError(RuntimeError):
    """The graders cannot be started, so nothing can be graded."""


class GraderTimeoutError(Exception):
    """An answer was not graded before its deadline."""


class GraderDiedError(Exception):
    """A grader died, or failed, over an answer."""


class Grader:
    """One child process. The constructor only launches it; it gets ready while the caller goes on."""

    def __init__(self) -> None:
        """Launches the process.

        Raises:
            GraderError: The system refuses another process.
        """
        try:
            requests, self._requests = connection.Pipe(duplex=False)
            self._replies, replies = connection.Pipe(duplex=False)
            with contextlib.closing(requests), contextlib.closing(replies):
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "r3env.grading.child"],
                    stdin=requests.fileno(),
                    stdout=replies.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=_environment(),
                    start_new_session=True,  # a Ctrl-C in the terminal is for the parent to handle
                )
        except OSError as error:
            raise GraderError(f"a grader process could not be launched: {error}") from error
        self._ready = False
        self.restarts = 0  # of its worker, the process that does the computing

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def started(self) -> bool:
        """Whether the process has something to say, be it that it is ready or that it failed to start."""
        return self._ready or self._replies.poll()

    def ready(self, wait_s: float) -> bool:
        """Whether the process is ready to be asked, after waiting for that up to `wait_s` seconds.

        Raises:
            GraderError: It failed to start.
        """
        if not self._ready and self._replies.poll(wait_s):
            message = self._receive() or {"failed": "the process died"}
            if "failed" in message:
                raise GraderError(f"a grader process could not start: {message['failed']}")
            self._ready = True
        return self._ready

    def ask(self, gold: str, answer: str, timeout_s: float) -> tuple[bool, bool]:
        """Whether the answer is equivalent to the gold, and whether one of the two could not be read.

        The process must be ready. It ends an overdue comparison itself, and is ready for the next one at once.

        Raises:
            GraderTimeoutError: It took longer than `timeout_s`.
            GraderDiedError: Grading failed, for example for want of memory.
        """
        started = time.monotonic()
        try:
            self._requests.send_bytes(json.dumps([gold, answer, timeout_s]).encode())
        except OSError as error:
            raise GraderDiedError("gone before it was asked") from error
        if not self._replies.poll(timeout_s + _GRACE_S):
            self.kill()  # it has been kept from running, or stopped
            raise GraderTimeoutError
        reply = self._receive()
        if reply is None:
            raise GraderTimeoutError if time.monotonic() - started >= timeout_s else GraderDiedError("died")
        self.restarts += bool(reply.get("restarted"))
        if "timeout" in reply:
            raise GraderTimeoutError
        if "correct" not in reply:
            raise GraderDiedError(str(reply.get("error", "died")))
        return bool(reply["correct"]), bool(reply["unread"])

    def kill(self) -> None:
        """Ends the process at once, whatever it is doing; any thread may do that."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with its worker; it leads a session of its own
        self._process.wait()

    def close_pipes(self) -> None:
        """Closes this side of the pipes; only for whoever talks to the process."""
        self._requests.close()
        self._replies.close()

    def _receive(self) -> dict[str, Any] | None:
        try:
            message: dict[str, Any] = json.loads(self._replies.recv_bytes())
        except EOFError:
            return None
        return message


def _environment() -> dict[str, str]:
    # The child has to find the modules that this process found, wherever a runtime environment put them.
    path = dict.fromkeys([*(os.path.abspath(entry) for entry in sys.path), _PACKAGE_ROOT])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",  # SymPy orders terms by hash here and there; verdicts must not depend on it
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",  # its threads' buffers would count against the memory limit
    }
