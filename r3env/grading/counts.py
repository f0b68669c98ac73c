"""Counts of what the grader has done in this process, for metrics."""

import threading
from collections import Counter

from r3env.core import Reason

KINDS = ("screened", "overlong", "unread", "remembered", "restarts")


class Counts:
    """A counter that many threads may add to: one count for each reason, and one for each of `KINDS`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counter: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """Counts one more of `name`."""
        with self._lock:
            self._counter[name] += 1

    def snapshot(self) -> dict[str, int]:
        """All counts so far, zeros included."""
        with self._lock:
            return {name: self._counter[name] for name in (*map(str, Reason), *KINDS)}
