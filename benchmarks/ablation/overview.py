"""The progress of an ablation: a line when a run ends, and one per minute."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from algorithms.train import metrics_file
from algorithms.utils.progress import duration
from benchmarks.ablation.plan import Job

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
