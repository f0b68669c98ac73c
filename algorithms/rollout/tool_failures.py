"""Warn when most calls of a tool fail: an episode goes on with the error as the tool's result. No Ray here."""

from collections.abc import Sequence

from algorithms.rollout.failures import Failures, count_kinds, kind_of
from algorithms.rollout.types import Rollout


class ToolWatch:
    """Warns in one line of the tool with the most failures if most of its calls fail, or else of all tools together.

    It warns at once, and again when another tool or error is the most frequent, or after `AGAIN_AFTER` steps.

    Args:
        whose: whose calls they are, to begin the line; empty: training's.
    """

    SHARE, FEWEST_CALLS, AGAIN_AFTER = 0.5, 4, 50

    def __init__(self, whose: str = "") -> None:
        self._begin = f"{whose}: tools" if whose else "tools"
        self._steps = 0
        self._told: dict[tuple[str, str], int] = {}

    def observe(self, rollouts: Sequence[Rollout]) -> str | None:
        """Take note of a step's episodes; return the warning when it is due."""
        self._steps += 1
        worst = self._worst([call for rollout in rollouts for call in rollout.calls])
        if worst is None:
            return None
        key = worst.what, kind_of(worst.kinds[0][0])
        if self._steps - self._told.get(key, -self.AGAIN_AFTER) < self.AGAIN_AFTER:
            return None
        self._told[key] = self._steps
        return (
            f"{self._begin}: {worst}. The policy reads the error as the result (tools/failed); fix: call the tool by "
            "itself, or start its server again"
        )

    def _worst(self, calls: Sequence[tuple[str, str]]) -> Failures | None:
        names = list(dict.fromkeys(name for name, _ in calls))
        each = [_among([call for call in calls if call[0] == name], name) for name in names]
        failing = [one for one in each if self._mostly_fails(one)]
        if failing:
            return max(failing, key=lambda one: one.failed)
        together = _among(calls, "all tools")
        return together if self._mostly_fails(together) else None

    def _mostly_fails(self, found: Failures) -> bool:
        return found.total >= self.FEWEST_CALLS and found.share > self.SHARE


def _among(calls: Sequence[tuple[str, str]], whose: str) -> Failures:
    """Count the failed ones among some calls, each a tool's name and its error."""
    return Failures(len(calls), count_kinds(error for _, error in calls if error), what=f"calls of {whose}")
