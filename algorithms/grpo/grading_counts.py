"""What the graders of all processes did in a step, from counts that each process keeps for itself. Pure."""

from collections import Counter
from collections.abc import Mapping

KINDS = ("unread", "screened", "restarts")


class GradingCounts:
    """Turns counts that only grow, one set a process, into what was added since they were read last.

    The first reading of a process is its start: what it had counted by then was another run's.
    """

    def __init__(self) -> None:
        self._read: dict[int, Counter[str]] = {}

    def added(self, totals: Mapping[int, Mapping[str, int]]) -> Counter[str]:
        """What has been added, all processes together.

        Args:
            totals: counts by the number of the runner, of those that answered. A runner whose counts have fallen has
                a new process, which began at 0.
        """
        total: Counter[str] = Counter()
        for number, counts in totals.items():
            before = self._read.get(number)
            if before is not None:
                restarted = any(counts.get(kind, 0) < count for kind, count in before.items())
                total.update({k: n - (0 if restarted else before[k]) for k, n in counts.items()})
            self._read[number] = Counter(counts)
        return total
