"""What a finished run learned, along its steps and along its generated tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.train.run_directory import RunDirectory
from benchmarks.ablation.plan import Job

PASS_AT_1 = "pass@1"
TOKENS = "throughput/generated_tokens"
CPU = "time/cpu"


@dataclass(frozen=True)
class Curve:
    """Measurements at points of a run.

    Args:
        steps: [points], rising; 0 is before training.
        tokens: [points], generated since the start.
        values: name → [points]; NaN where it was not measured.
    """

    steps: np.ndarray
    tokens: np.ndarray
    values: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, points: Sequence[tuple[float, float, Mapping[str, Any]]]) -> "Curve":
        """Build it from (step, tokens, name → value) in order, without what is not a number."""
        names = dict.fromkeys(
            name for _, _, values in points for name, value in values.items() if isinstance(value, int | float)
        )
        columns = {
            name: np.array([np.nan if values.get(name) is None else values[name] for _, _, values in points], float)
            for name in names
        }
        steps, tokens = (np.array([point[axis] for point in points], float) for axis in (0, 1))
        return cls(steps, tokens, columns)

    def along(self, axis: str) -> np.ndarray:
        """Return the points' places [points] on an axis: `steps`, `tokens`, or a name of `values` that rises."""
        return ({"steps": self.steps, "tokens": self.tokens} | dict(self.values))[axis]

    def at(self, name: str, where: float | np.ndarray, *, axis: str) -> np.ndarray:
        """Interpolate the value there linearly between measurements.

        Args:
            name: what was measured.
            where: steps or generated tokens.
            axis: see `along`.
        """
        measured = np.isfinite(self.values[name])
        return np.interp(where, self.along(axis)[measured], self.values[name][measured])


@dataclass(frozen=True)
class Learnt:
    """A finished run.

    Args:
        held_out: the evaluations, with `pass@1` and whatever else they measured.
        training: the steps, by the tags of metrics.jsonl.
    """

    arm: str
    seed: int
    folder: Path
    settings_hash: str
    wall_s: float
    held_out: Curve
    training: Curve

    @property
    def steps(self) -> int:
        """Training steps in all."""
        return int(self.held_out.steps[-1])

    @property
    def tokens(self) -> int:
        """Generated tokens in all."""
        return int(self.held_out.tokens[-1])

    def accuracy(self, where: float, *, axis: str) -> float:
        """Interpolate held-out pass@1 there."""
        return float(self.held_out.at(PASS_AT_1, where, axis=axis))

    @property
    def final(self) -> dict[str, float]:
        """The last evaluation."""
        return {name: float(values[-1]) for name, values in self.held_out.values.items()}


def learned(job: Job) -> Learnt:
    """Read a finished run.

    Raises:
        ValueError: it is not finished.
    """
    directory = RunDirectory.open(job.folder)
    if not directory.summary_file.is_file():
        raise ValueError(f"{job.folder}: is not finished")
    summary = json.loads(directory.summary_file.read_text(encoding="utf-8"))
    rows = directory.read_metrics()
    return Learnt(
        arm=job.arm,
        seed=job.seed,
        folder=job.folder,
        settings_hash=job.settings_hash,
        wall_s=summary["wall_s"],
        held_out=held_out(summary, rows),
        training=Curve.of([(row["step"], row[TOKENS], row) for row in rows]),
    )


def held_out(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Curve:
    """Return a finished run's evaluations: before, between and after its steps.

    Args:
        summary: of summary.json.
        rows: of metrics.jsonl.
    """
    sides = summary["eval"]
    between = [
        (row["step"], row[TOKENS], {name: row[f"eval/{name}"] for name in sides["before"] if f"eval/{name}" in row})
        for row in rows
        if f"eval/{PASS_AT_1}" in row and row["step"] < summary["steps"]
    ]
    return Curve.of(
        [(0, 0, sides["before"]), *between, (summary["steps"], summary["generated_tokens"], sides["after"])]
    )


def cpu_until(training: Curve, steps: np.ndarray) -> np.ndarray:
    """Return the CPU seconds of the training steps up to each of `steps`, evaluations not among them."""
    total = np.concatenate([[0.0], np.cumsum(training.values[CPU])])
    return total[np.searchsorted(training.steps, steps, side="right")]
