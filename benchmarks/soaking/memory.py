"""Whether a process grows as it runs."""

import contextlib
import time
from collections.abc import Sequence

import numpy as np
import psutil

# The first part of a process's life is imports, weights and the first batches.
SETTLING = 0.5
LONG_ENOUGH_S = 120.0
ALLOWED_MIB = 100.0


class MemoryWatch:
    """Looks at the resident memory of a run's driver and its env runners."""

    def __init__(self) -> None:
        self._seen: dict[int, list[tuple[float, float]]] = {}

    def look(self, driver: int, runners: Sequence[psutil.Process]) -> None:
        """Note what each has now."""
        for process in (psutil.Process(driver), *runners) if psutil.pid_exists(driver) else ():
            with contextlib.suppress(psutil.Error):
                size = process.memory_info().rss / 2**20
                self._seen.setdefault(process.pid, []).append((time.monotonic(), size))

    @property
    def most_growth_mib(self) -> float:
        """Of any process that lived long enough: the median of its last quarter less that after it had settled."""
        growths = [_growth(seen) for seen in self._seen.values() if seen[-1][0] - seen[0][0] >= LONG_ENOUGH_S]
        return max(growths, default=0.0)

    @property
    def troubles(self) -> list[str]:
        """Growth beyond what is allowed, in words."""
        grown = self.most_growth_mib
        return [f"a process grew by {grown:.0f} MiB after it had settled"] if grown > ALLOWED_MIB else []


def _growth(seen: Sequence[tuple[float, float]]) -> float:
    settled = np.array([size for _, size in seen[int(len(seen) * SETTLING) :]])
    part = max(1, len(settled) // 4)
    return float(np.median(settled[-part:]) - np.median(settled[:part]))
