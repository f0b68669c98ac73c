"""Whether a process grows as a run trains."""

import contextlib
import time
from collections.abc import Hashable, Sequence

import numpy as np
import psutil

from benchmarks.soaking.processes import kind, of_run

# The first steps of a process fill caches and pools: those of the allocators, of SQLite, of the longest batch and of
# the first evaluation so far. Evaluations are no farther apart than this.
SETTLING_STEPS = 16
LONG_ENOUGH_STEPS = 35
ALLOWED_MIB = 50.0
EVERY_S = 2.0


class MemoryWatch:
    """Samples the memory of each process of a run, without files and Ray's shared one.

    Args:
        steps: that the run is to make; what comes after the last, evaluation and curves, is not looked at.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._next_look = 0.0
        self._seen: dict[Hashable, list[tuple[int, float]]] = {}
        self._kinds: dict[Hashable, str] = {}

    def look(self, driver: int, step: int) -> None:
        """Note the memory of each process of `driver`'s run now, after `step` steps."""
        if not 0 < step < self._steps or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + EVERY_S
        for process in of_run(driver):
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()  # USS would lack what a fork shares, for as long as that lives
                self.note(process, kind(process, driver), step, (memory.rss - memory.shared) / 2**20)

    def note(self, process: Hashable, kind: str, step: int, mib: float) -> None:
        """Note one process. Its last kind counts: an actor's process is idle before it is the actor's."""
        self._kinds[process] = kind
        self._seen.setdefault(process, []).append((step, mib))

    @property
    def growths_mib(self) -> dict[str, float]:
        """Of each kind the largest growth of a process that made enough steps."""
        found: dict[str, float] = {}
        for process, seen in self._seen.items():
            if seen[-1][0] - seen[0][0] >= LONG_ENOUGH_STEPS:
                name = self._kinds[process]
                found[name] = max(found.get(name, -np.inf), _growth(seen))
        return found

    @property
    def unjudged(self) -> list[str]:
        """Kinds of which no process made enough steps."""
        return sorted(set(self._kinds.values()) - self.growths_mib.keys())

    @property
    def troubles(self) -> list[str]:
        """Growth beyond what is allowed, in words."""
        return [
            f"{name} grew by {grown:.0f} MiB after it had settled"
            for name, grown in self.growths_mib.items()
            if grown > ALLOWED_MIB
        ]


def in_words(growths_mib: dict[str, float], unjudged: Sequence[str]) -> str:
    """Return the largest growth and its process, and what was not judged, in words."""
    if not growths_mib:
        return f"MEMORY NOT JUDGED, no process made {LONG_ENOUGH_STEPS} steps"
    name = max(growths_mib, key=lambda name: growths_mib[name])
    most = f"memory: of {len(growths_mib)} kinds of process {name} grew most, {growths_mib[name]:+.0f} MiB"
    return most + (f" (not judged: {', '.join(unjudged)})" if unjudged else "")


def _growth(seen: Sequence[tuple[int, float]]) -> float:
    """Return the upper quartile of the last third minus that of the first third after it had settled.

    What a process has between two steps or at a checkpoint is less than what a step takes: single looks lie below.
    """
    settled = np.array([size for step, size in seen if step - seen[0][0] >= SETTLING_STEPS])
    part = max(1, len(settled) // 3)
    return float(np.percentile(settled[-part:], 75) - np.percentile(settled[:part], 75))
