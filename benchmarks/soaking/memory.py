"""Whether a process grows as it trains."""

import contextlib
import time
from collections.abc import Sequence

import numpy as np
import psutil

# The first steps of a process fill caches and pools: those of the allocators, of SQLite, of the longest batch so far.
SETTLING_STEPS = 15
LONG_ENOUGH_STEPS = 35
ALLOWED_MIB = 50.0
EVERY_S = 2.0


class MemoryWatch:
    """Looks at the memory that a run's driver and its env runners have to themselves, Ray's shared one left out.

    Args:
        steps: that the run is to make; what comes after the last, evaluation and curves, is not looked at.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._next_look = 0.0
        self._seen: dict[str, list[tuple[int, float]]] = {}

    def look(self, driver: int, runners: Sequence[psutil.Process], step: int) -> None:
        """Note what each has now, after `step` steps."""
        if not 0 < step < self._steps or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + EVERY_S
        with contextlib.suppress(psutil.NoSuchProcess):
            self._note("driver", psutil.Process(driver), step)
        for runner in runners:
            self._note("runner", runner, step)

    def _note(self, name: str, process: psutil.Process, step: int) -> None:
        with contextlib.suppress(psutil.Error):
            size = process.memory_full_info().uss / 2**20
            self._seen.setdefault(f"{name} {process.pid}", []).append((step, size))

    @property
    def growths_mib(self) -> dict[str, float]:
        """Of each process that made enough steps: the median of its last quarter less that after it had settled."""
        return {
            name: _growth(seen) for name, seen in self._seen.items() if seen[-1][0] - seen[0][0] >= LONG_ENOUGH_STEPS
        }

    @property
    def most_growth_mib(self) -> float:
        """Of any process; NaN where none lived long enough."""
        return max(self.growths_mib.values(), default=float("nan"))

    @property
    def troubles(self) -> list[str]:
        """Growth beyond what is allowed, in words."""
        return [
            f"{name} grew by {grown:.0f} MiB after it had settled"
            for name, grown in self.growths_mib.items()
            if grown > ALLOWED_MIB
        ]


def _growth(seen: Sequence[tuple[int, float]]) -> float:
    settled = np.array([size for step, size in seen if step - seen[0][0] >= SETTLING_STEPS])
    part = max(1, len(settled) // 4)
    return float(np.median(settled[-part:]) - np.median(settled[:part]))
