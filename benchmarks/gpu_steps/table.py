"""Progress and the table, in plain text: a GPU machine may lack every library that draws."""

import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu_steps.step import Step

SECONDS_BETWEEN_LINES = 10.0


class Ticker:
    """Shows the step that runs, with its seconds: redrawn in place on a terminal, else a line now and then."""

    def __init__(self, total: int) -> None:
        self._total, self._prefix = total, ""
        self._terminal = sys.stderr.isatty()
        self._last = 0.0

    def begin(self, number: int, step: Step) -> None:
        """Print the name of the step that starts."""
        self._prefix, self._last = f"[{number}/{self._total}] {step.name}", time.monotonic()
        if not self._terminal:
            print(f"{self._prefix}: {step.what} (at most {step.limit_s:g} s)", file=sys.stderr, flush=True)

    def tick(self, seconds: float, line: str) -> None:
        """Print its seconds and the last line of its log."""
        now = time.monotonic()
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{f'{self._prefix} {seconds:.0f} s  {line}'[:width]:{width}}", end="", file=sys.stderr, flush=True)
        elif now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            print(f"{self._prefix} {seconds:.0f} s  {line}", file=sys.stderr, flush=True)

    def end(self, number: int, step: Step, row: Mapping[str, Any]) -> None:
        """Print how it ended."""
        clear = "\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r" if self._terminal else ""
        took = f" after {row['seconds']:.0f} s" if "seconds" in row else ""
        text = f"{clear}[{number}/{self._total}] {step.name} {row['status']}{took}: {row['summary']}"
        print(text, file=sys.stderr, flush=True)


def table_of(rows: Mapping[str, Mapping[str, Any]], order: Sequence[str], width: int = 120) -> str:
    """Return the table: step, how it ended, seconds, and what it found or why it did not run."""
    names = [name for name in order if name in rows]
    first = max([len("step"), *map(len, names)])
    second = max([len("ended"), *(len(rows[name]["status"]) for name in names)])
    indent = first + second + 12
    lines = [f"{'step':{first}}  {'ended':{second}}  {'seconds':>7} | found, or why not"]
    lines.append("-" * width)
    for name in names:
        row = rows[name]
        seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
        text = textwrap.wrap(row["summary"], max(30, width - indent), break_long_words=False) or [""]
        lines.append(f"{name:{first}}  {row['status']:{second}}  {seconds:>7} | {text[0]}")
        lines += [f"{'':{indent - 3}} | {part}" for part in text[1:]]
    return "\n".join(lines)
