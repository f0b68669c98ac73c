"""Runs as processes, a number at a time; an interrupt goes to all of them, and each leaves a checkpoint."""

import math
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from algorithms.train import metrics_file
from algorithms.train.stopping import raise_interrupt
from algorithms.utils.files import write_text
from algorithms.utils.progress import duration
from benchmarks.ablation.plan import Job, State, state

SECONDS_BETWEEN_LINES = 60.0


class Overview:
    """Prints how many runs are done, the progress of the others, and when all will be done.

    Args:
        todo: the runs that are not finished.
        finished: how many were, at the start.
        stream: standard error by default.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        todo: Sequence[Job],
        finished: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._todo, self._finished = len(todo), finished
        self._stream, self._clock = stream or sys.stderr, clock
        self._began = self._last_line_at = clock()
        # What an earlier call has done of a run says nothing about the pace of this one.
        self._had = {job.name: part_done(job) for job in todo}
        self._ended = 0

    def update(self, running: Sequence[Job], codes: Mapping[str, int]) -> None:
        """Take the running jobs and the exit codes by name; print a line if anything changed or a minute has passed."""
        now = self._clock()
        if len(codes) == self._ended and now - self._last_line_at < SECONDS_BETWEEN_LINES:
            return
        self._ended, self._last_line_at = len(codes), now
        print(self.line(running, codes), file=self._stream, flush=True)

    def line(self, running: Sequence[Job], codes: Mapping[str, int]) -> str:
        """Return the current line."""
        failed = sum(code != 0 for code in codes.values())
        elapsed = self._clock() - self._began
        parts = {job.name: part_done(job) for job in running}
        now = {**{name: 1.0 for name, code in codes.items() if code == 0}, **parts}
        done = sum(part - self._had[name] for name, part in now.items())
        to_do = sum(1 - now.get(name, had) for name, had in self._had.items() if not codes.get(name))
        said = [
            f"{self._finished + len(codes) - failed}/{self._finished + self._todo} runs done",
            *([f"{failed} failed"] if failed else []),
            *(f"{name} {math.floor(100 * part)}%" for name, part in parts.items()),
            f"{duration(elapsed)} elapsed",
            *([f"{duration(elapsed / done * to_do)} left"] if done > 0 and to_do > 0 else []),
        ]
        return "  ".join(said)


def part_done(job: Job) -> float:
    """Return the share of a run's steps or tokens that is done, from 0 to 1."""
    rows = metrics_file.read(job.folder / "metrics.jsonl")
    if not rows:
        return 0.0
    parts = [rows[-1]["step"] / job.run.steps]
    if job.run.max_generated_tokens:
        parts.append(rows[-1]["throughput/generated_tokens"] / job.run.max_generated_tokens)
    return min(1.0, max(parts))


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
