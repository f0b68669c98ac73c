"""What a soak does to a run while it trains."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
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
        """Its env runner actors."""
        return [process for process in self.all() if RUNNER in _title(process)]

    def all(self) -> list[psutil.Process]:
        """All its processes, Ray's own included."""
        return of_run(self.process.pid)


def kill(run: Running) -> None:
    """As when the machine loses power: every process of the run at once, so that none outlives another and tells."""
    processes = run.all()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in reversed(processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def terminate(run: Running) -> None:
    """What a cluster sends before it takes the machine away."""
    run.process.send_signal(signal.SIGTERM)


def terminate_twice(run: Running) -> None:
    """What somebody sends who signals a process and then its group."""
    terminate(run)
    time.sleep(AGAIN_S)
    terminate(run)


def interrupt(run: Running) -> None:
    """One Ctrl-C."""
    run.process.send_signal(signal.SIGINT)


def fill_disk(run: Running) -> None:
    """No byte is left until the run has ended over it."""
    filler = run.folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(timeout=ENDING_S)
    filler.unlink()


def kill_runner(run: Running) -> None:
    """One env runner dies; the run goes on."""
    for runner in run.runners()[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            runner.kill()


def stop_runner(run: Running) -> None:
    """One env runner hangs for good; the run goes on without it until it has another."""
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
    """What may happen to a run, by whether it has a disk of its own and whether it has env runner actors."""
    return {**ENDING, **(DISK if own_disk else {}), **(RUNNERS if remote else {})}


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[bool]:
    """Mount a file system of its own on a folder; yields whether that was permitted."""
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
