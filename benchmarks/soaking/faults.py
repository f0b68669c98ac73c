"""The faults of a soak, and how a run may end after each; any other end is an error."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.soaking.processes import of_run

ENDING_S = 240.0
AGAIN_S = 0.2
RUNNER = "LLMEnvRunner"


@dataclass(frozen=True)
class Running:
    """A run's process and the folder, a small file system if one could be mounted, that its run directory is in."""

    process: subprocess.Popen[str]
    folder: Path

    def runners(self) -> list[psutil.Process]:
        """Return its env runner actors."""
        return [process for process in self.all() if RUNNER in _title(process)]

    def all(self) -> list[psutil.Process]:
        """Return all its processes, Ray's own included."""
        return of_run(self.process.pid)


def kill(run: Running) -> None:
    """Kill every process of the run at once, as when the machine loses power: none can report the others."""
    processes = run.all()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in reversed(processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def terminate(run: Running) -> None:
    """Send what a cluster sends before it takes the machine away."""
    run.process.send_signal(signal.SIGTERM)


def terminate_twice(run: Running) -> None:
    """Send SIGTERM twice, as a signal to a process and then to its group does."""
    terminate(run)
    time.sleep(AGAIN_S)
    terminate(run)


def interrupt(run: Running) -> None:
    """Send one Ctrl-C."""
    run.process.send_signal(signal.SIGINT)


def fill_disk(run: Running) -> None:
    """Leave no free byte until the run has ended over it."""
    filler = run.folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(timeout=ENDING_S)
    filler.unlink()


def kill_runner(run: Running) -> None:
    """Kill one env runner; the run continues."""
    for runner in run.runners()[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            runner.kill()


def stop_runner(run: Running) -> None:
    """Suspend one env runner for good; the run continues without it until it is replaced."""
    for runner in run.runners()[-1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            runner.suspend()


# Faults by name, and whether they end the process.
Fault = Callable[[Running], None]
ENDING: dict[str, Fault] = {
    "SIGKILL": kill,
    "SIGTERM": terminate,
    "SIGTERM twice": terminate_twice,
    "SIGINT": interrupt,
}
DISK: dict[str, Fault] = {"full disk": fill_disk}
RUNNERS: dict[str, Fault] = {"runner SIGKILL": kill_runner, "runner SIGSTOP": stop_runner}


def possible(own_disk: bool, remote: bool) -> dict[str, Fault]:
    """Choose the faults for a run, by whether it has a disk of its own and env runner actors."""
    return {**ENDING, **(DISK if own_disk else {}), **(RUNNERS if remote else {})}


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[bool]:
    """Mount a file system of its own on a folder; yield whether that was permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            time.sleep(0.5)
            subprocess.run(["umount", "-l", str(folder)], check=False)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


INTERRUPTED = 130


@dataclass(frozen=True)
class Ending:
    """An exit code, as `subprocess` has it, and what the last line then begins with."""

    code: int
    last: str = ""

    def fits(self, code: int, last: str) -> bool:
        """Return whether a process ended so."""
        return code == self.code and last.startswith(self.last)


# A signal that comes before the command takes it ends Python. While Ray starts, and after the last step, Ray's own
# handler of SIGTERM leaves with the signal's number; between its start and the first step it must not be left with the
# one of Ray's compiled core, which aborts. A fault that is not here ends no run.
_TERMINATED = (Ending(INTERRUPTED), Ending(-signal.SIGTERM), Ending(int(signal.SIGTERM)))
AFTER: dict[str, tuple[Ending, ...]] = {
    "SIGKILL": (Ending(-signal.SIGKILL),),
    "SIGTERM": _TERMINATED,
    "SIGTERM twice": _TERMINATED,
    "SIGINT": (Ending(INTERRUPTED), Ending(-signal.SIGINT)),
    "full disk": (Ending(1, "error: No space left on device"),),
}
# No fault of ours, and none of the run's: Ray gives itself half a minute to start.
TOO_BUSY = Ending(1, "error: Ray did not start")


def explained(code: int, last: str, faults: Iterable[str]) -> bool:
    """Return whether a process that had these faults may end with this exit code and this last line."""
    return any(ending.fits(code, last) for ending in [TOO_BUSY, *(e for name in faults for e in AFTER.get(name, ()))])
