"""Restart a run that died from its last checkpoint: a parent process that imports neither torch nor Ray.

With `run.restarts` above 0 the training command is this process, the supervisor, and the run is its child. SIGINT,
SIGTERM and SIGHUP that reach the supervisor are orders: it passes them on, and restarts nothing. See
docs/operate/restarts.md.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from algorithms.train.exit_codes import DIRECTORY, DONE, ERROR, FAILED, INTERRUPTED, RESTART, VARIABLE, WRONG_INPUT
from algorithms.train.run_directory import CHECKPOINTS, checkpoint_steps
from algorithms.train.stopping import orders
from algorithms.utils.process import stat_fields

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


@dataclass(frozen=True)
class Ending:
    """How a run's process ended.

    Args:
        code: its exit code, negative for the signal that killed it.
        checkpoint: the step of its newest checkpoint; 0 without one.
        error: the line that it ended with, if any.
        stopped: whether the supervisor was told to stop, by SIGINT or SIGTERM.
        out_of_memory: whether the system killed a process for memory in the meantime.
    """

    code: int
    checkpoint: int = 0
    error: str = ""
    stopped: bool = False
    out_of_memory: bool = False

    @property
    def died(self) -> bool:
        """Whether a restart may help: a signal that reaches the run alone is a fault, not an order."""
        return not self.stopped and self.code not in (DONE, WRONG_INPUT)

    @property
    def reason(self) -> str:
        """The cause of the end, in a few words."""
        if self.code == INTERRUPTED:
            return "interrupted by a signal that its supervisor did not get"
        if self.code >= 0:
            return self.error or f"exit code {self.code}"
        killed = f"killed by {_name(-self.code)}"
        return f"{killed}, as memory ran out" if self.out_of_memory and self.code == -signal.SIGKILL else killed


class Restarts:
    """Counts the starts of a run that brought it no further.

    Args:
        most: restarts in a row without a new checkpoint before it is given up.
    """

    def __init__(self, most: int) -> None:
        self.most, self.made, self.fruitless = most, 0, 0
        self._reached: int | None = None  # unknown before the first death

    def after(self, ending: Ending) -> float | None:
        """Count a death; return the seconds to wait before the next start, None to give up."""
        if self._reached is not None:
            self.fruitless = 0 if ending.checkpoint > self._reached else self.fruitless + 1
        self._reached = ending.checkpoint
        if self.fruitless >= self.most:
            return None
        self.made += 1
        return float(min(FIRST_PAUSE_S * 2**self.fruitless, LONGEST_PAUSE_S))

    def line(self, ending: Ending, run: str | None, pause_s: float) -> str:
        """Return what to print before a restart.

        Args:
            ending: of the process before.
            run: the run directory that is resumed; None where it had none yet.
            pause_s: the wait.
        """
        how = f"resuming {run} after step {ending.checkpoint}" if run else "starting again"
        return f"restart {self.made}: {ending.reason}; {how} in {pause_s:g} s"

    def last_line(self, ending: Ending, run: str | None) -> str:
        """Return what to print when the run is given up."""
        fix = f"; fix: the cause, then --resume {run}" if run else ""
        return f"error: given up after {self.fruitless} restarts without a new checkpoint: {ending.reason}{fix}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


_POLL_S = 0.2
_KILL_S = 30.0


def supervise(command: Sequence[str], arguments: Sequence[str], restarts: int) -> int:
    """Run the training command, and again whenever it dies; returns the exit code.

    Args:
        command: what starts it, without arguments.
        arguments: of the first start. Once the run has a directory it is started with `--resume` alone.
        restarts: in a row without a new checkpoint before the run is given up.
    """
    with tempfile.TemporaryDirectory(prefix="r3-grpo-") as folder:
        return _Supervisor(command, arguments, Path(folder)).run(Restarts(restarts))


class _Supervisor:
    def __init__(self, command: Sequence[str], arguments: Sequence[str], folder: Path) -> None:
        self.command, self.arguments, self.folder = command, arguments, folder
        self.order: int | None = None
        self.child: subprocess.Popen[bytes] | None = None

    def run(self, restarts: Restarts) -> int:
        """Start the run until it ends for good; returns the exit code."""
        with self._passing_orders_on():
            while True:
                ending = self._attempt()
                if not ending.died:
                    return _exit_code(ending)
                pause_s = restarts.after(ending)
                if pause_s is None:
                    print(restarts.last_line(ending, self._reported(DIRECTORY)), file=sys.stderr)
                    return _exit_code(ending)
                print(restarts.line(ending, self._reported(DIRECTORY), pause_s), file=sys.stderr, flush=True)
                if self._is_stopped_within(pause_s):
                    return INTERRUPTED
                (self.folder / RESTART).touch()

    def _attempt(self) -> Ending:
        (self.folder / ERROR).unlink(missing_ok=True)
        killed_before, directory = _killed_for_memory(), self._reported(DIRECTORY)
        arguments = ["--resume", directory] if directory else self.arguments
        # In a session of its own: a Ctrl-C of the terminal then comes to it once, through here.
        surroundings = {**os.environ, VARIABLE: f"{os.getpid()}:{self.folder}"}
        self.child = subprocess.Popen([*self.command, *arguments], env=surroundings, start_new_session=True)
        if self.order is not None:  # it came while there was no child
            _send(self.child, self.order)
        code = _wait(self.child)
        return Ending(
            code=code,
            checkpoint=self._newest_checkpoint(),
            error=self._reported(ERROR) or "",
            stopped=self.order is not None,
            out_of_memory=_killed_for_memory() > killed_before,
        )

    def _newest_checkpoint(self) -> int:
        directory = self._reported(DIRECTORY)
        return max(checkpoint_steps(Path(directory, CHECKPOINTS)), default=0) if directory else 0

    def _reported(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _is_stopped_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.order is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        return self.order is not None

    @contextmanager
    def _passing_orders_on(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self._pass_on) for number in orders()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.order = number
        if self.child is not None and self.child.returncode is None:
            _send(self.child, number)
            _send(self.child, signal.SIGCONT)  # one that is stopped would not hear of it


def _send(child: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal. `Popen.send_signal` would reap a child that has ended, and `_wait` could not find it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, number)


def _wait(child: "subprocess.Popen[bytes]") -> int:
    """Wait for the run; kill what a dead one left in its process group, such as an engine that holds a GPU."""
    # waits: as long as the run takes; signals are passed on meanwhile
    if _failed(child):
        # before it is reaped: until then nobody else has this number
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        _wait_for_group(child.pid)
    return child.wait()  # waits: it has ended


def _failed(child: "subprocess.Popen[bytes]") -> bool:
    """Wait for a process, which stays to be reaped; Python before 3.13 has no such call on macOS, and reaps it."""
    if not hasattr(os, "waitid"):
        return child.wait() != 0  # waits: as `_wait` says
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # waits: as `_wait` says
    return ended is None or ended.si_status != 0


def _wait_for_group(group: int) -> None:
    """Wait until all processes of a group that was killed have ended, for `_KILL_S` at most.

    A killed process holds its memory and its GPU until it has ended, which takes a while on a busy machine.
    """
    until = time.monotonic() + _KILL_S
    while _runs(group) and time.monotonic() < until:
        time.sleep(0.01)


def _runs(group: int) -> bool:
    """Whether a process of the group has not ended yet, as far as this system's /proc says."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, process_group, *_ = stat_fields(path.name)
            if int(process_group) == group and state not in "ZX":
                return True
    return False


def _exit_code(ending: Ending) -> int:
    if ending.code >= 0:
        return ending.code
    return INTERRUPTED if ending.stopped and -ending.code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) else FAILED


def _killed_for_memory() -> int:
    """Return how many processes this system has killed for memory since it started; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
        return int(counts.get("oom_kill", 0))
    return 0
