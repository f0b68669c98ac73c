"""The faults of a soak, and how a run may end after each; any other end is an error."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from benchmarks.soaking.command import own_memory
from benchmarks.soaking.kinds import Kind
from benchmarks.soaking.processes import of_run

ENDING_S = 240.0
AGAIN_S = 0.2
PAUSE_S = 12.0
FULL_S = 30.0
ATTACK_S = 30.0
CONNECTIONS = 200
RUNNER, LEARNER, CONTROL, GRADES = "LLMEnvRunner", "ray::_WrappedExecutable", "gcs_server", "r3env."
CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Running:
    """A run's process and the folder, a small file system if one could be mounted, that its run directory is in.

    Args:
        process: it.
        folder: that.
        rng: draws which process a fault strikes.
    """

    process: subprocess.Popen[str]
    folder: Path
    rng: random.Random = field(default_factory=random.Random)

    def runners(self) -> list[psutil.Process]:
        """Return its env runner actors."""
        return self.titled(RUNNER)

    def titled(self, word: str) -> list[psutil.Process]:
        """Return its processes whose command line holds a word."""
        return [process for process in self.all() if word in _title(process)]

    def all(self) -> list[psutil.Process]:
        """Return all its processes, Ray's own included."""
        return of_run(self.process.pid)


def each(processes: Iterable[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    """Kill or suspend processes, those that are gone left out."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            act(process)


def kill(run: Running) -> None:
    """Kill every process of the run at once, as when the machine loses power: none can report the others."""
    processes = run.all()
    each(processes, psutil.Process.suspend)
    each(reversed(processes), psutil.Process.kill)


def terminate(run: Running) -> None:
    """Send what a cluster sends before it takes the machine away."""
    run.process.send_signal(signal.SIGTERM)


def terminate_twice(run: Running) -> None:
    """Send SIGTERM twice, as a signal to a process and then to its group does."""
    terminate(run)
    time.sleep(AGAIN_S)
    terminate(run)


def fill_disk(run: Running) -> None:
    """Leave no free byte until the run has ended over it."""
    filler = run.folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(timeout=ENDING_S)
    filler.unlink()


def pause(run: Running) -> None:
    """Suspend one process, whichever, for less than any limit; the run continues.

    Not one that grades: it is replaced after seconds, and the answer may count as ungraded.
    """
    able = [process for process in run.all() if GRADES not in _title(process)]
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
        stopped = run.rng.choice(able)
        stopped.suspend()
        time.sleep(PAUSE_S)
        stopped.resume()


def _stop_for_good(run: Running, title: str) -> None:
    """Suspend a process; a run that has not ended after a limit is killed, which the fault does not explain."""
    found = run.titled(title)[:1]
    each(found, psutil.Process.suspend)
    try:
        run.process.wait(timeout=ENDING_S if found else 0)
    except subprocess.TimeoutExpired:
        if found:
            kill(run)


def fill_memory(run: Running) -> None:
    """Leave no room in the run's own /dev/shm for a while; the run continues, or ends in a line that says so."""
    shared, size = Path(f"/proc/{run.process.pid}/root/dev/shm"), "50%"
    with contextlib.suppress(OSError):
        found = os.statvfs(shared)
        used_kib = (found.f_blocks - found.f_bfree) * found.f_frsize // 1024
        _resize_memory(run, f"{max(4, used_kib)}k")
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(timeout=FULL_S)
    _resize_memory(run, size)


def _resize_memory(run: Running, size: str) -> None:
    command = ["nsenter", "-t", str(run.process.pid), "-m", "mount", "-o", f"remount,size={size}", "/dev/shm"]
    subprocess.run(command, capture_output=True, check=False)


def attack(run: Running) -> None:
    """Hold hundreds of idle and hostile connections to the endpoints of agents for a while; the run continues."""
    attackers = [
        subprocess.Popen([sys.executable, "-m", "tests.hostile_clients", str(port), str(CONNECTIONS)], cwd=CHECKOUT)
        for port in endpoints(run.all()[:1] + run.runners())
    ]
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(timeout=ATTACK_S)
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.wait()


def endpoints(processes: Iterable[psutil.Process]) -> list[int]:
    """List the ports at which processes answer HTTP/1.1, as the endpoint of agents does and Ray's ports do not."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            ports = {each.laddr.port for each in process.net_connections("tcp4") if each.status == psutil.CONN_LISTEN}
            found += [port for port in sorted(ports) if _speaks_http(port)]
    return found


def _speaks_http(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection.recv(8) == b"HTTP/1.1"
    return False


# Faults by name, and whether they end the process.
Fault = Callable[[Running], None]
ENDING: dict[str, Fault] = {
    "SIGKILL": kill,
    "SIGTERM": terminate,
    "SIGTERM twice": terminate_twice,
    "SIGINT": lambda run: run.process.send_signal(signal.SIGINT),
    "Ray SIGSTOP": partial(_stop_for_good, title=CONTROL),
    "any SIGSTOP, SIGCONT": pause,
}
DISK: dict[str, Fault] = {"full disk": fill_disk}
MEMORY: dict[str, Fault] = {"full /dev/shm": fill_memory}
RUNNERS: dict[str, Fault] = {
    "runner SIGKILL": lambda run: each(run.runners()[:1], psutil.Process.kill),
    "runner SIGSTOP": lambda run: each(run.runners()[-1:], psutil.Process.suspend),
    "learner SIGSTOP": partial(_stop_for_good, title=LEARNER),
}
TOOLS: dict[str, Fault] = {"grader SIGSTOP": lambda run: each(run.titled(GRADES)[:1], psutil.Process.suspend)}
AGENTS: dict[str, Fault] = {"hostile connections": attack}


def possible(own_disk: bool, kind: Kind) -> dict[str, Fault]:
    """Choose the faults for a run, by whether it has a disk of its own, and by its kind."""
    return {
        **ENDING,
        **(DISK if own_disk else {}),
        **(MEMORY if own_memory() else {}),
        **(RUNNERS if kind.runners else {}),
        **(TOOLS if kind.task == "tools" else {}),
        **(AGENTS if kind.task == "agents" else {}),
    }


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
    "full /dev/shm": (Ending(1, "error: "),),
    "learner SIGSTOP": (Ending(1, "error: only 0 of 1 learners"), Ending(1, "error: a learner could not send")),
    "Ray SIGSTOP": (Ending(1, "error: Ray's control process"), Ending(1, "error: Ray did not start")),
}
# No fault of ours, and none of the run's: Ray gives itself half a minute to start.
TOO_BUSY = Ending(1, "error: Ray did not start")


def explained(code: int, last: str, faults: Iterable[str]) -> bool:
    """Return whether a process that had these faults may end with this exit code and this last line."""
    return any(ending.fits(code, last) for ending in [TOO_BUSY, *(e for name in faults for e in AFTER.get(name, ()))])
