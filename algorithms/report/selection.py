"""Which trajectories go into the page, when there are more than fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from algorithms.report.run_data import ReportError
from algorithms.train.rollout_files import RolloutRow, read_group_lengths, read_rollouts


@dataclass(frozen=True)
class Most:
    """What a page may hold."""

    trajectories: int
    tokens: int

    def less(self, rows: Sequence[RolloutRow]) -> "Most":
        """What is left once these are in."""
        return Most(max(0, self.trajectories - len(rows)), max(0, self.tokens - sum(row.tokens for row in rows)))

    def shared_by(self, count: int) -> "Most":
        """An equal share."""
        return Most(self.trajectories // count, self.tokens // count)


@dataclass(frozen=True)
class Selection:
    """Whole groups, in the order of steps.

    Args:
        found: how many trajectories the run has.
        steps_found: over how many steps.
    """

    rows: Sequence[RolloutRow]
    found: int
    steps_found: int


def select(files: Sequence[Path], most: Most) -> Selection:
    """Choose groups evenly over the steps, the first and the newest step among them.

    Args:
        files: a step's rollouts each, in order.
        most: kept to, but for groups that alone are larger: a step that is there at all has one group or more.

    Raises:
        ReportError: a file cannot be read.
    """
    filled: list[Path] = []
    rows: list[RolloutRow] = []
    try:
        for file in files:
            current = file
            if pq.read_metadata(file).num_rows:
                filled.append(file)
        found = sum(pq.read_metadata(file).num_rows for file in filled)
        places = evenly(len(filled), _steps(filled[-1], most)) if filled and most.trajectories > 0 else []
        for turn, place in enumerate(places):
            current = filled[place]
            # What one step leaves of its share goes to those after it.
            share = most.less(rows).shared_by(len(places) - turn)
            rows += read_rollouts(current, some_groups(read_group_lengths(current), share, turn))
    except (OSError, pa.ArrowException) as error:
        raise ReportError(f"{current}: cannot be read ({error}); fix: move it away") from error
    return Selection(rows, found, len(filled))


def _steps(newest: Path, most: Most) -> int:
    """How many steps can have a group of the newest step's mean size."""
    groups = read_group_lengths(newest).values()
    trajectories = sum(len(group) for group in groups) / len(groups)
    tokens = sum(sum(group) for group in groups) / len(groups)
    return max(1, int(min(most.trajectories / trajectories, most.tokens / max(tokens, 1))))


def evenly(count: int, wanted: int) -> list[int]:
    """At most `wanted` of the places 0 … count - 1, first and last among them; a single one is the last."""
    if wanted >= count:
        return list(range(count))
    if wanted == 1:
        return [count - 1]
    return [round(place * (count - 1) / (wanted - 1)) for place in range(wanted)]


def some_groups(lengths: Mapping[int, Sequence[int]], most: Most, turn: int = 0) -> list[int]:
    """Groups of a step, at least one, and no more than `most` allows.

    Args:
        lengths: of each group's responses, in tokens.
        most: of the groups together.
        turn: which group comes first, so that not every step shows the same ones.
    """
    numbers = list(lengths)
    first = turn % len(numbers)
    taken: list[int] = []
    trajectories = tokens = 0
    for number in [*numbers[first:], *numbers[:first]]:
        trajectories += len(lengths[number])
        tokens += sum(lengths[number])
        if taken and (trajectories > most.trajectories or tokens > most.tokens):
            break
        taken.append(number)
    return sorted(taken)
