"""Child processes that can be killed whatever they compute: launch, talk, deadline, kill.

Why not the obvious ways. A thread cannot be interrupted inside one operation on huge integers, which holds the GIL
besides. The children of `multiprocessing`, and so of `concurrent.futures` and `pebble.ProcessPool`, are either forked,
which copies the locks and the Ray state of a process with many threads, or spawned, which imports the user's main
script once more (and trains within itself if the script has no guard). So a child is a program of its own, launched
with an `exec` in a session of its own: it inherits no threads and no CUDA, and a Ctrl-C in the terminal is for the
parent to handle. One caller at a time talks to it; `pool.py` keeps several. `child.py` is the child's side.
"""

import contextlib
import json
import multiprocessing.connection as connection
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from r3env.child_processes.frames import FrameError, receive_frame, send_frame

_START_LIMIT_S = 60.0  # for its imports, on a busy machine
_LONGEST_REPLY = 1 << 19
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


class ProcessStartError(RuntimeError):
    """A process could not be launched, or did not become ready."""


class ProcessTimeoutError(Exception):
    """The work was not done before its deadline."""


class ProcessDiedError(Exception):
    """The process died, or failed, during its work: for example for lack of memory."""


class ProcessTamperedError(Exception):
    """The received message is not one that the process sends."""


class KillableProcess:
    """A program in a separate session, whose standard error is discarded."""

    def __init__(self, command: Sequence[str], *, stdin: Any, stdout: Any, **options: Any) -> None:
        """Launch the program.

        Args:
            command: The program and its arguments.
            stdin: As `subprocess.Popen` takes it.
            stdout: As `subprocess.Popen` takes it.
            options: Further arguments of `subprocess.Popen`, such as `env` and `cwd`.

        Raises:
            ProcessStartError: The system refuses another process.
        """
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, start_new_session=True, **options
            )
        except OSError as error:
            raise ProcessStartError(f"a process could not be launched: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None  # waits: it only looks

    def kill(self) -> None:
        """End the process at once, whatever it is doing; any thread may do that."""
        self._process.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with what it forked
        self._process.wait()  # waits: nothing outlives that signal


def run_to_end(command: Sequence[str], request: bytes, output: IO[bytes], timeout_s: float, **options: Any) -> None:
    """Run a program on `request` as its standard input; its output is in `output` either way.

    Raises:
        ProcessStartError: The system refuses another process.
        ProcessTimeoutError: It did not end before its deadline, and was killed.
    """
    process = KillableProcess(command, stdin=subprocess.PIPE, stdout=output, **options)
    try:
        process._process.communicate(request, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ProcessTimeoutError from None
    finally:
        process.kill()


class Child(KillableProcess):
    """A Python module that answers messages over two pipes. It starts in the background."""

    def __init__(self, module: str, name: str) -> None:
        """Launch the module.

        Args:
            module: What runs, by `python -m`; it serves messages by `r3env.child_processes.child`.
            name: What the process is, for messages: "grader".

        Raises:
            ProcessStartError: The system refuses another process.
        """
        try:
            requests, self._requests = connection.Pipe(duplex=False)
            self._replies, replies = connection.Pipe(duplex=False)
        except OSError as error:
            raise ProcessStartError(f"a process could not be launched: {error}") from error
        with contextlib.closing(requests), contextlib.closing(replies):
            command = [sys.executable, "-P", "-m", module]
            super().__init__(command, stdin=requests.fileno(), stdout=replies.fileno(), env=child_environment())
        self._name = name
        self._ready = False
        self.used = False  # whether it has had a request
        self.made: set[bytes] = set()  # what it has imported and made, as its users note it

    @property
    def started(self) -> bool:
        """Whether the process has sent something, either that it is ready or that it failed to start."""
        return self._ready or self._replies.poll()  # waits: it only looks

    @property
    def quiet(self) -> bool:
        """Whether a ready process has sent nothing, as required between requests."""
        return not self._replies.poll()  # waits: it only looks

    @property
    def usable(self) -> bool:
        """Whether the process runs, and has sent nothing unrequested."""
        return self.alive and (not self._ready or self.quiet)

    def wait_until_ready(self, limit_s: float = _START_LIMIT_S) -> None:
        """Wait until the process can take requests.

        Raises:
            ProcessStartError: It failed to start, or takes longer than `limit_s`.
        """
        if self._ready:
            return
        if not self._replies.poll(limit_s):
            raise ProcessStartError(f"a {self._name} process was not ready after {limit_s:.0f} s")
        try:
            message = self.receive(limit_s)
        except ProcessDiedError:
            message = {"failed": "the process died"}
        if "failed" in message:
            raise ProcessStartError(f"a {self._name} process could not start: {message['failed']}")
        self._ready = True

    def send(self, request: bytes, limit_s: float) -> None:
        """Send a request.

        Args:
            request: The message.
            limit_s: Seconds in which the process, which waits for one, has to take all of it.

        Raises:
            ProcessDiedError: The process is gone, or was killed because it does not take the request.
        """
        self.used = True
        try:
            send_frame(self._requests, request, time.monotonic() + limit_s)
        except OSError as error:  # TimeoutError among them
            self.kill()
            raise ProcessDiedError("ended before the request") from error

    def receive(self, timeout_s: float, grace_s: float = 0.0) -> dict[str, Any]:
        """Receive the next reply, which is a JSON object.

        Args:
            timeout_s: Deadline of the work, which the process itself is to keep.
            grace_s: Time beyond it for the process to act on that; then it is killed.

        Raises:
            ProcessTimeoutError: No reply came in time; the process is dead.
            ProcessDiedError: The process died before that.
            ProcessTamperedError: What came is no JSON object.
        """
        started = time.monotonic()
        try:
            reply = json.loads(receive_frame(self._replies, _LONGEST_REPLY, started + timeout_s + grace_s))
        except TimeoutError:
            self.kill()  # it has been kept from running, or stopped
            raise ProcessTimeoutError from None
        except (EOFError, OSError) as error:
            self.kill()
            overdue = time.monotonic() - started >= timeout_s
            raise ProcessTimeoutError if overdue else ProcessDiedError("died") from error
        except (FrameError, ValueError, RecursionError) as error:
            raise ProcessTamperedError from error
        if not isinstance(reply, dict):
            raise ProcessTamperedError
        return reply

    def close_pipes(self) -> None:
        """Close this side of the pipes; only for whoever talks to the process."""
        self._requests.close()
        self._replies.close()


def child_environment() -> dict[str, str]:
    """Return the environment variables of children, with which they find this process's modules."""
    path = dict.fromkeys([*(os.path.abspath(entry) for entry in sys.path), _PACKAGE_ROOT])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",  # SymPy orders terms by hash here and there; verdicts must not depend on it
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",  # its threads' buffers would count against the memory limit
    }
