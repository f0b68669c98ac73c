"""Cached outcomes: the members of a group give the same few answers to the same gold."""

import threading
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison.

    Args:
        equal: Whether the two were equal; None if that took longer than `timeout_s`.
        unread: Whether one of the two was not understood as mathematics.
        timeout_s: The deadline that was given.
    """

    equal: bool | None
    unread: bool
    timeout_s: float


class VerdictCache:
    """The latest `size` outcomes; safe to use from any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._outcomes: OrderedDict[tuple[str, str], Outcome] = OrderedDict()

    def get(self, gold: str, answer: str, timeout_s: float) -> Outcome | None:
        """Return the outcome for this pair; a timeout only if the deadline was no shorter than `timeout_s`."""
        with self._lock:
            outcome = self._outcomes.get((gold, answer))
            if outcome is None or (outcome.equal is None and outcome.timeout_s < timeout_s):
                return None
            self._outcomes.move_to_end((gold, answer))
            return outcome

    def put(self, gold: str, answer: str, outcome: Outcome) -> None:
        """Store an outcome, and forget the one that was of no use for longest."""
        with self._lock:
            self._outcomes[gold, answer] = outcome
            self._outcomes.move_to_end((gold, answer))
            if len(self._outcomes) > self._size:
                self._outcomes.popitem(last=False)

    def clear(self) -> None:
        """Delete all entries."""
        with self._lock:
            self._outcomes.clear()
