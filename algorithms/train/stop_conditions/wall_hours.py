"""End a run after some hours."""

from collections.abc import Mapping
from typing import Any

from algorithms.train.stop_conditions.base import StopCondition


class WallHours(StopCondition):
    """Hours since the run's start, those of earlier processes up to the step that they were resumed from included."""

    name = "wall_hours"

    def measure(self, row: Mapping[str, Any]) -> float:
        """Return the hours at the step's end."""
        return float(row["run/wall_s"]) / 3600
