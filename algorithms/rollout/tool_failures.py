"""Warn when most calls of a tool fail: an episode goes on with the error as the tool's result. No Ray here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from algorithms.rollout.failures import kind_of, one_line
from algorithms.rollout.types import Rollout
from algorithms.utils.progress import percent


@dataclass(frozen=True)
class ToolFailures:
    """The failed ones among some calls.

    Args:
        whose: the tool, for people.
        calls: all of them.
        failed: those that failed.
        error: the first of the most frequent kind.
        count: how many were of that kind.
    """

    whose: str
    calls: int
    failed: int
    error: str
    count: int

    @classmethod
    def of(cls, whose: str, calls: Sequence[tuple[str, str]]) -> "ToolFailures":
        """Count the failed ones among some calls, each a tool's name and its error."""
        kinds = Counter(kind_of(error) for _, error in calls if error)
        most = kinds.most_common(1)
        first = next((error for _, error in calls if error and kind_of(error) == most[0][0]), "")
        return cls(whose, len(calls), kinds.total(), first, most[0][1] if most else 0)

    @property
    def share(self) -> float:
        """The share of the calls that failed."""
        return self.failed / max(self.calls, 1)

    def __str__(self) -> str:
        """Say how many failed, and name the most frequent error."""
        of_them = "" if self.count == self.failed else f", {self.count} of them with"
        counted = f"{self.failed} of {self.calls} calls of {self.whose} failed ({percent(self.share)})"
        return f"{counted}{of_them}: {one_line(self.error)}"


class ToolWatch:
    """Warns in one line of the tool with the most failures if most of its calls fail, or else of all tools together.

    It warns at once, and again when another tool or error is the most frequent, or after `AGAIN_AFTER` steps.
    """

    SHARE, FEWEST_CALLS, AGAIN_AFTER = 0.5, 4, 50

    def __init__(self) -> None:
        self._steps = 0
        self._told: dict[tuple[str, str], int] = {}

    def observe(self, rollouts: Sequence[Rollout]) -> str | None:
        """Take note of a step's episodes; return the warning when it is due."""
        self._steps += 1
        worst = self._worst([call for rollout in rollouts for call in rollout.calls])
        if worst is None:
            return None
        key = worst.whose, kind_of(worst.error)
        if self._steps - self._told.get(key, -self.AGAIN_AFTER) < self.AGAIN_AFTER:
            return None
        self._told[key] = self._steps
        return (
            f"tools: {worst}. The policy reads the error as the result (tools/failed); fix: call the tool by itself, "
            "or start its server again"
        )

    def _worst(self, calls: Sequence[tuple[str, str]]) -> ToolFailures | None:
        names = list(dict.fromkeys(name for name, _ in calls))
        each = [ToolFailures.of(name, [call for call in calls if call[0] == name]) for name in names]
        failing = [one for one in each if one.calls >= self.FEWEST_CALLS and one.share > self.SHARE]
        if failing:
            return max(failing, key=lambda one: one.failed)
        together = ToolFailures.of("all tools", calls)
        return together if together.calls >= self.FEWEST_CALLS and together.share > self.SHARE else None
