"""Runs as processes, a number at a time; an interrupt goes to all of them, and each leaves a checkpoint."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from algorithms.train.stopping import raise_interrupt
from algorithms.utils.files import write_text
from benchmarks.ablation.plan import Job
from benchmarks.ablation.stored import State, state

THREADS = "OMP_NUM_THREADS"
# Ray gives up half a minute after it began to start, which on a busy machine is too soon.
PATIENCE = {"RAY_raylet_start_wait_time_s": "300"}
_POLL_S = 0.2
# A step of a large model may take minutes, and its checkpoint comes after it.
_GRACE_S = 900.0


def command(job: Job) -> list[str]:
    """Return the command that starts or resumes the run."""
    script = [sys.executable, "-m", f"algorithms.{job.algorithm}"]
    if state(job) is State.BEGUN:
        return [*script, "--resume", str(job.folder)]
    return [*script, "--config", str(job.settings_file)]


def start(job: Job, environment: Mapping[str, str], keep_open: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start or resume the run in a session of its own; append its output to its log.

    Args:
        job: the run.
        environment: variables of the process.
        keep_open: file descriptors that it inherits.
    """
    for file in (job.settings_file, job.log):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(job.settings_file, job.yaml)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            command(job),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )


def surroundings() -> dict[str, str]:
    """Return a run's environment variables: one thread unless the user sets it.

    Sums depend on the number of threads, and a run must not depend on how many others there are.
    """
    return {THREADS: "1", "MKL_NUM_THREADS": "1", **PATIENCE, **os.environ}


def run_in_parallel(
    jobs: Sequence[Job],
    *,
    at_a_time: int,
    watch: Callable[[Sequence[Job], Mapping[str, int]], None],
    keep_open: Sequence[int] = (),
) -> dict[str, int]:
    """Run all jobs; one that fails does not end the others.

    Args:
        jobs: in the order in which they start.
        at_a_time: processes at the same time.
        watch: called several times a second with the jobs that run and the exit codes so far, by name.
        keep_open: file descriptors that the processes inherit.

    Returns:
        Exit codes by the runs' names.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM, once every process has ended.
    """
    waiting = deque(jobs)
    running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}
    codes: dict[str, int] = {}
    with sigterm_as_interrupt():
        try:
            while waiting or running:
                while waiting and len(running) < at_a_time:
                    job = waiting.popleft()
                    running[job.name] = job, start(job, surroundings(), keep_open)
                time.sleep(_POLL_S)
                ended = {name: code for name, (_, process) in running.items() if (code := process.poll()) is not None}
                codes |= ended
                running = {name: pair for name, pair in running.items() if name not in ended}
                watch([job for job, _ in running.values()], codes)
        except BaseException:
            stop([process for _, process in running.values()])
            raise
    return codes


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask processes to stop after their step, and wait; a further Ctrl-C asks more urgently."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            process.send_signal(number)  # does nothing to one that has ended
        try:
            for process in processes:
                process.wait(_GRACE_S)
            return
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            continue


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C while open: a terminated ablation ends its runs too."""
    previous = signal.signal(signal.SIGTERM, raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
