"""Rollouts of one step as a Parquet file, for reading afterwards."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from algorithms.runs.parquet_files import write_parquet

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("uid", pa.string()),
        ("group", pa.int32()),
        ("context", pa.dictionary(pa.int32(), pa.string())),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("reward", pa.float32()),
        ("advantage", pa.float32()),
        ("correct", pa.bool_()),
        ("truncated", pa.bool_()),
        ("verdict", pa.dictionary(pa.int32(), pa.string())),
        ("tokens", pa.int32()),
        ("replayed", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class RolloutRow:
    """One sample of a group as it entered the update.

    Args:
        step: training step, from 1.
        group: index of its group in the step.
        context: `plain` or `reflection`.
        reward: after shaping.
        verdict: the grader's reason.
        tokens: how many tokens the policy wrote.
        replayed: it came from the history, not from this step's policy.
    """

    step: int
    uid: str
    group: int
    context: str
    prompt: str
    response: str
    reward: float
    advantage: float
    correct: bool
    truncated: bool
    verdict: str
    tokens: int
    replayed: bool


def write_rollouts(path: Path, rows: Sequence[RolloutRow]) -> None:
    """Write the rows, zstd-compressed; a file of that name is replaced whole.

    Text that is not valid Unicode (a lone surrogate) gets `?` in its place.
    """
    write_parquet(path, map(asdict, rows), SCHEMA)


def read_rollouts(path: Path) -> list[RolloutRow]:
    """Read what `write_rollouts` wrote, in its order."""
    return [RolloutRow(**record) for record in pq.read_table(path, schema=SCHEMA).to_pylist()]
