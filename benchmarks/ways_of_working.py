"""The embedded model's strategies, early and late in a run, and how often each is correct.

`python -m benchmarks.ways_of_working runs/NAME` reads the run's rollout files.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from algorithms.train.rollout_files import RolloutRow, read_rollouts

WAYS = ("running", "remainder", "guess")


def way_of(problem: str, response: str) -> str:
    """Return the strategy of a response; see `r3env.assets.arithmetic`."""
    if "=" not in response:
        return "guess"
    signs = [i for i, character in enumerate(problem) if character in "+-"]
    first_operation = problem[: signs[1]] if len(signs) > 1 else problem
    return "running" if response.startswith(f"{first_operation}=") else "remainder"


def main() -> None:
    """Print the table for the first and the last steps of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=5, help="steps at each end")
    arguments = parser.parse_args()
    files = sorted((arguments.run / "rollouts").glob("step-*.parquet"))
    if not files:
        parser.error(f"{arguments.run} has no rollouts; train with run.save_rollouts=true")
    table = Table(title=f"Plain responses of the first and the last {arguments.steps} steps", title_justify="left")
    for name in ("way of working", "first: share", "correct", "last: share", "correct"):
        table.add_column(name, justify="left" if name.startswith("way") else "right")
    ends = [_responses(files[: arguments.steps]), _responses(files[-arguments.steps :])]
    for way in WAYS:
        table.add_row(way, *(cell for rows in ends for cell in _cells(rows, way)))
    Console().print(table)


def _responses(files: Sequence[Path]) -> list[RolloutRow]:
    rows = [row for file in files for row in read_rollouts(file)]
    return [row for row in rows if row.context == "plain" and not row.replayed]


def _cells(rows: Sequence[RolloutRow], way: str) -> tuple[str, str]:
    chosen = [row for row in rows if way_of(row.prompt, row.response) == way]
    right = Counter(row.correct for row in chosen)[True]
    return f"{len(chosen) / len(rows):.0%}", f"{right / len(chosen):.0%}" if chosen else "–"


if __name__ == "__main__":
    main()
