"""Run a function that a policy wrote, in a process that is allowed almost nothing.

The process gets limits of CPU time, memory, output and processes, and may open no file and no socket once the
code runs; where the kernel permits, it also sits in namespaces of its own, without network and without sight of
other processes. Started by root, it gives up root first.

What this does not defend against: holes in the kernel or in CPython; a policy's code that deletes or renames
files of the user who trains, or signals that user's processes, by calls that open nothing, if it gets past the
audit hook (as root trains, it runs as nobody and can do neither); timing and other side channels. It is a fence
around the mistakes and the cheating of a policy in training, not around an attacker: for code that people send
you, put the whole env runner into a container or a virtual machine that you can lose.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from r3env.child_processes.process import ProcessStartError, ProcessTimeoutError, run_to_end

# Episodes step in many threads; with a process to each of them at once, `wall_s` would measure the others.
_slots = threading.BoundedSemaphore(os.cpu_count() or 1)
_CHILD = Path(__file__).with_name("sandbox_child.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Limits:
    """The limits of the code; seconds of CPU time are rounded up to whole ones."""

    cpu_s: int = 2
    wall_s: float = 20.0
    memory_bytes: int = 256 << 20
    output_bytes: int = 64 << 10


class Ending(StrEnum):
    """How a run ended."""

    RETURNED = "returned"
    FAILED = "failed"
    OVERTIME = "overtime"


@dataclass(frozen=True)
class Outcome:
    """The end of a run, and its result for each call: plain JSON data that the code may have made up."""

    ending: Ending
    results: tuple[Any, ...] = ()


def run_calls(code: str, function: str, calls: Sequence[Sequence[Any]], limits: Limits | None = None) -> Outcome:
    """Run `code`, then call its `function` with each list of arguments.

    Expected results stay out of the process, so that the code cannot read them.

    Args:
        code: Python source.
        function: name that the source defines.
        calls: positional arguments of each call, plain JSON data.
        limits: None for the defaults.

    Raises:
        ProcessStartError: no process could be started with these limits, whatever the code.
    """
    limits = limits or Limits()
    job = {"code": code, "function": function, "calls": list(calls), **asdict(limits)}
    command = [*_namespaces(), sys.executable, "-I", "-S", "-c", _CHILD]
    with _slots, tempfile.TemporaryFile() as output:
        try:
            request, environment = json.dumps(job).encode(), {"PATH": os.defpath}
            run_to_end(command, request, output, limits.wall_s, cwd="/", env=environment)
        except ProcessTimeoutError:
            return Outcome(Ending.OVERTIME)
        output.seek(0)
        lines = output.read(limits.output_bytes + 1).splitlines()
    if not lines or lines[0] != b"ready":
        raise ProcessStartError("the sandbox did not start: no process could be fenced in on this system")
    return _outcome(lines[1:], len(calls))


def _outcome(lines: Sequence[bytes], expected: int) -> Outcome:
    try:
        results = tuple(json.loads(line) for line in lines)
    except (ValueError, RecursionError):
        return Outcome(Ending.FAILED)
    return Outcome(Ending.RETURNED if len(results) == expected else Ending.FAILED, results)


@functools.cache
def _namespaces() -> tuple[str, ...]:
    """The command that makes namespaces, or nothing where the system has or permits none."""
    command: tuple[str, ...] = ("unshare", "--net", "--ipc")
    if os.geteuid() != 0:
        # The code keeps our user, so it must not see our processes. Killing `unshare` kills it along.
        command += ("--user", "--pid", "--fork", "--kill-child")
    if shutil.which("unshare") is None:
        return ()
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else ()
