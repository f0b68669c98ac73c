"""What a run prints and records of its steps."""

import time
from collections.abc import Mapping
from typing import Any

from algorithms.train.evaluations import to_tags
from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.progress import Progress


class StepLog:
    """Records each step, and shows it with the speed and the time that is left.

    Args:
        directory: of the run; time and tokens go on from its last step.
        recorder: writes metrics.jsonl and to trackers.
    """

    def __init__(self, directory: RunDirectory, recorder: Recorder) -> None:
        self._directory, self._recorder = directory, recorder
        last: dict[str, Any] = next(reversed(directory.read_metrics()), {})
        self._tokens_before = self._tokens = float(last.get("sft/tokens", 0.0))
        self._last = time.monotonic()
        self._started = self._last - float(last.get("run/wall_s", 0.0))
        self._progress: Progress | None = None

    def start(self, steps: int, done: int) -> None:
        """Show the progress of so many steps, of which some are done."""
        self._progress = Progress(steps, done)
        self._last = time.monotonic()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record and show a step."""
        now = time.monotonic()
        tokens, seconds = self._tokens_before + metrics["sft/tokens"], now - self._last
        speed = (tokens - self._tokens) / seconds if seconds else 0.0
        self._last, self._tokens = now, tokens
        times = {"sft/tokens_per_s": speed, "time/step": seconds, "run/wall_s": now - self._started}
        row = {"step": step, **metrics, "sft/tokens": tokens, **times}
        self._recorder.record(row)
        if self._progress:
            self._progress.update(row)

    def held_out(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add an evaluation between steps to the step's row."""
        tags = to_tags(metrics)
        self._directory.add_to_last_metrics(tags)
        self._recorder.record_evaluation(step, tags)
        self._last = time.monotonic()
        self.message(f"step {step}: held-out loss {metrics['loss']:.3f}, entropy {metrics['entropy']:.3f}")

    def message(self, text: str) -> None:
        """Print a line of its own."""
        if self._progress:
            self._progress.message(text)

    def close(self) -> None:
        """Leave the last line on the terminal."""
        if self._progress:
            self._progress.close()
