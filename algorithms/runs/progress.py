"""How far a run is: one live line on a terminal, plain lines in a pipe or a log."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

# In a log, steps of a second each would be a wall of text, and silence for minutes looks like a hang.
SECONDS_BETWEEN_LINES = 5.0
STEPS_IN_ESTIMATE = 20
# What a step's time is split into, in the order in which it passes, and how small a part is not worth its words.
PARTS = ("generate", "grade", "statistics", "update", "transfer")
LEAST_SHARE_SHOWN = 0.05


class Progress:
    """Shows each step's reward, unsolved share, truncation, speed and where its time went, and when the run will end.

    On a terminal that is one line, redrawn in place. Elsewhere it is whole lines without control characters:
    for the first step, the last one, every one with an evaluation, and otherwise one in five seconds at most.

    Args:
        total_steps: the run ends with this step.
        start_step: the last step that was already done (a resumed run).
        stream: where to write; standard error by default, so that standard output stays clean.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._clock = clock
        self._started = clock()
        self._last_line_at = -math.inf
        # End times of the latest steps; the difference of the outer two gives the pace.
        self._ends: deque[tuple[int, float]] = deque([(start_step, self._started)], maxlen=STEPS_IN_ESTIMATE + 1)
        self._step = start_step
        self._row: Mapping[str, Any] = {}
        self._stage = ""
        self._stream = stream or sys.stderr
        self._live: Live | None = None
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            # Standard output that goes elsewhere must stay there.
            self._live = Live(
                get_renderable=self._text,
                console=Console(file=self._stream, force_terminal=True),
                refresh_per_second=2,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.start()

    def stage(self, name: str) -> None:
        """Say what the running step is at (`rollouts`, `update`, …). Shown on a terminal only."""
        self._stage = name

    def update(self, row: Mapping[str, Any]) -> None:
        """Take the row of a finished step: tag → number, with `step`. The line leaves out missing tags."""
        now = self._clock()
        self._step, self._row, self._stage = int(row["step"]), row, ""
        first = len(self._ends) == 1
        self._ends.append((self._step, now))
        if self._live:
            self._live.refresh()
            return
        evaluated = any(tag.startswith("eval/") for tag in row)
        due = now - self._last_line_at >= SECONDS_BETWEEN_LINES
        if first or due or evaluated or self._step >= self._total:
            self._last_line_at = now
            self._print(self.line())

    def message(self, text: str) -> None:
        """Print a line of its own, above the live line where there is one."""
        if self._live:
            self._live.console.print(Text(text))
        else:
            self._print(text)

    def line(self) -> str:
        """Return the line that stands for the present moment."""
        now = self._clock()
        parts = [
            f"step {self._step}/{self._total}",
            *_numbers(self._row),
            f"{duration(now - self._started)} elapsed",
        ]
        remaining = self._remaining(now)
        if remaining is not None:
            parts.append(f"{duration(remaining)} left")
        if self._stage:
            parts.append(self._stage)
        return "  ".join(parts)

    def close(self) -> None:
        """Leave the last line standing. A second call does nothing."""
        self._stage = ""
        if self._live:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remaining(self, now: float) -> float | None:
        (first_step, first_end), (last_step, last_end) = self._ends[0], self._ends[-1]
        if last_step == first_step or last_step >= self._total:
            return None
        pace = (last_end - first_end) / (last_step - first_step)
        return max(0.0, pace * (self._total - last_step) - (now - last_end))

    def _text(self) -> Text:
        return Text(self.line(), no_wrap=True, overflow="ellipsis")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def duration(seconds: float) -> str:
    """Format seconds as `42s`, `3m05s` or `2h07m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _numbers(row: Mapping[str, Any]) -> list[str]:
    shown: tuple[tuple[str, Callable[[float], str]], ...] = (
        ("reward/mean", lambda value: f"reward {value:.3f}"),
        ("groups/solve_none", lambda value: f"unsolved {value:.0%}"),
        ("response/truncated", lambda value: f"truncated {value:.0%}"),
        ("throughput/response_tokens_per_s", lambda value: f"{value:,.0f} tokens/s"),
        ("throughput/mfu", lambda value: f"MFU {value:.0%}"),
        ("throughput/padding_share", lambda value: f"padding {value:.0%}" if value >= LEAST_SHARE_SHOWN else ""),
        ("eval/pass@1", lambda value: f"pass@1 {value:.1%}"),
    )
    numbers = [write(row[tag]) for tag, write in shown if _finite(row.get(tag))]
    return [number for number in [*numbers, _time_split(row)] if number]


def _time_split(row: Mapping[str, Any]) -> str:
    """Where the step's time went, as shares of it: `generate 61% update 30%`. They overlap under a policy lag."""
    step = row.get("time/step")
    if not _finite(step) or not step:
        return ""
    shares = {part: row[f"time/{part}"] / step for part in PARTS if _finite(row.get(f"time/{part}"))}
    return " ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= LEAST_SHARE_SHOWN)


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)
