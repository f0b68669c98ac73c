"""How far a known number of answers is: a bar on a terminal, a plain line now and then in a log."""

import sys
import time
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from algorithms.runs.progress import SECONDS_BETWEEN_LINES, duration


class Counter:
    """Counts up to a total that the first call of `update` names.

    Args:
        title: what is counted.
        stream: where to write; standard error by default.
    """

    def __init__(self, title: str, *, stream: TextIO | None = None) -> None:
        self._title, self._stream = title, stream or sys.stderr
        self._started = self._last_line_at = time.monotonic()
        self._bar: Bar | None = None
        if self._stream.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(file=self._stream), transient=True)
            self._task = self._bar.add_task(title, total=None)

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        if self._bar:
            self._bar.update(self._task, completed=done, total=total)
        elif done and time.monotonic() - self._last_line_at >= SECONDS_BETWEEN_LINES:
            self._last_line_at = time.monotonic()
            rate = done / (self._last_line_at - self._started)
            left = duration((total - done) / rate)
            print(f"{self._title}: {done}/{total}  {rate:,.1f}/s  {left} left", file=self._stream, flush=True)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        else:
            print(self._title, file=self._stream, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
