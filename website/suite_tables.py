"""Figures of the suite's test; `python -m benchmarks.suite --table-only` prints the same from the same records."""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.looks import TITLES
from benchmarks.suite import figure, records, repeated, table
from benchmarks.suite.records import Run

_DIGITS = 3


@functools.cache
def _runs() -> tuple[Run, ...]:
    return tuple(records.read_test())


@functools.cache
def _scores(axis: str) -> np.ndarray:
    return records.areas(_runs(), axis, records.TOKENS if axis == "tokens" else None)


def in_short(images: Path) -> str:
    """Return each arm's level and R³ minus it over tokens and CPU seconds, and draw the curves over tokens."""
    figure.draw_curves(_runs(), images / "suite.png")
    found = {axis: table.compare_runs(_runs(), _scores(axis)) for axis in records.AXES}
    lines = ["| arm | mean held-out pass@1 | R³ minus it | R³ minus it, equal CPU seconds |", "|---|---|---|---|"]
    for arm in table.ordered_arms(_runs()):
        cells = [TITLES[arm], _written(found["tokens"].levels[arm])]
        for axis in records.AXES:
            other = found[axis].differences.get(arm)
            cells.append("" if other is None else _written(other.iqm, "+"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compared(_: Path, axis: str) -> str:
    """Return R³ against every other arm on one axis, with p-values and verdicts."""
    return table.comparison(_runs(), _scores(axis)).strip()


def profiles(images: Path) -> str:
    """Draw the performance profiles, and return where they are."""
    figure.draw_profiles(_runs(), images / "suite-profiles.png")
    return "![Share of runs above a threshold of mean held-out pass@1, for each arm](../images/suite-profiles.png)"


def by_part(_: Path, reference: str = records.REFERENCE) -> str:
    """Return paired differences over generated tokens, by difficulty and by skill."""
    return table.differences_by_part(_runs(), _scores("tokens"), table.ordered_arms(_runs(), reference)).strip()


def by_task(_: Path) -> str:
    """Return the last pass@1 of each task."""
    return table.final_by_task(_runs(), table.ordered_arms(_runs())).strip()


def ends(_: Path) -> str:
    """Return what the runs are like at their ends, and R³ minus each arm there."""
    arms = table.ordered_arms(_runs())
    return f"{table.ends(_runs(), arms)}\nR³ minus the arm:\n\n{table.differences_at_the_end(_runs(), arms)}".strip()


def idle(_: Path) -> str:
    """Return CPU seconds of runs that were repeated on the idle machine."""
    return repeated.table().strip()


def _written(values: Sequence[float], sign: str = "") -> str:
    value, low, high = (f"{number:{sign}.{_DIGITS}f}" for number in values)
    return f"{value} [{low}, {high}]"
