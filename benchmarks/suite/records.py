"""Finished runs of the suite, one JSON object per line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

AXES = ("tokens", "cpu_s")
DIFFICULTIES = ("easy", "medium", "blind")
FINAL = ("pass@1", "pass@8", "entropy", "truncated")
REFERENCE = "r3"  # the arm that the others are compared with
TOKENS = 160_000  # the registered budget of a run
RECORDS = Path(__file__).parents[2] / "docs" / "evidence" / "suite.jsonl"


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        phase: `test`, or `sweep` of the learning rates.
        task: what it was trained on.
        difficulty: `easy`, `medium` or `blind`: how often the base was correct.
        skill: `none` or `own_failures`: what the base had learned of second turns.
        base: replicate of the base model.
        arm: the method.
        seed: of the run.
        lr: learning rate.
        steps: [points], rising from 0, before training.
        tokens: [points], generated since the start.
        cpu_s: [points], CPU seconds since the start.
        pass_at_1: [points], on held-out problems.
        final: `pass@1`, `pass@8`, `entropy` (nats a token) and `truncated` (share of responses) at its end.
        wall_s: seconds that it took.
        protocol: SHA-256 of the protocol that it ran under, hexadecimal.
        commit: of the code.
    """

    phase: str
    task: str
    difficulty: str
    skill: str
    base: int
    arm: str
    seed: int
    lr: float
    steps: np.ndarray
    tokens: np.ndarray
    cpu_s: np.ndarray
    pass_at_1: np.ndarray
    final: Mapping[str, float]
    wall_s: float
    protocol: str
    commit: str

    @property
    def name(self) -> str:
        """The run's unique name."""
        place = f"{self.phase}/{self.task}/{self.difficulty}/{self.skill}/base-{self.base}"
        return f"{place}/{self.arm}/seed-{self.seed}/lr-{self.lr:g}"

    @property
    def stratum(self) -> str:
        """Task and difficulty: within them bases are resampled."""
        return f"{self.task}, {self.difficulty}"

    @property
    def cluster(self) -> str:
        """The base within its stratum; replicates of two skills are two models, trained apart."""
        return f"{self.skill}-{self.base}"

    @property
    def cell(self) -> str:
        """Task, difficulty and skill: only runs that agree in all three are the same exercise."""
        return f"{self.stratum}, {self.skill}"


def read(file: Path = RECORDS) -> list[Run]:
    """Return the runs, in the file's order."""
    return [_run(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def read_test(file: Path = RECORDS) -> list[Run]:
    """Return the runs of the test, by name."""
    return sorted((run for run in read(file) if run.phase == "test"), key=lambda run: run.name)


def _run(content: Mapping[str, Any]) -> Run:
    names = {"steps": "step", "tokens": "tokens", "cpu_s": "cpu_s", "pass_at_1": "pass@1"}
    curve = {name: np.array([point[key] for point in content["curve"]], float) for name, key in names.items()}
    values: dict[str, Any] = {**content, **curve}
    return Run(**{field.name: values[field.name] for field in fields(Run)})


def area(run: Run, axis: str, budget: float) -> float:
    """Return the mean held-out pass@1 over [0, budget], the curve being straight between two measurements.

    Args:
        run: a run.
        axis: `tokens` or `cpu_s`.
        budget: generated tokens or CPU seconds, positive.

    Raises:
        ValueError: the run ends before the budget.
    """
    points = getattr(run, axis)
    if budget > points[-1]:
        raise ValueError(f"{run.name}: ends at {points[-1]:g} {axis}, before {budget:g}")
    places = np.concatenate([[0.0], points[(points > 0) & (points < budget)], [budget]])
    return float(np.trapezoid(np.interp(places, points, run.pass_at_1), places) / budget)


def areas(runs: Sequence[Run], axis: str, budget: float | None = None) -> np.ndarray:
    """Return each run's area: [runs].

    Args:
        runs: at least one.
        axis: `tokens` or `cpu_s`.
        budget: the same for all runs; by default, for each task, difficulty and skill, where its shortest run ends.

    Raises:
        ValueError: a run ends before the budget.
    """
    ends: dict[str, float] = {}
    for run in runs:
        ends[run.cell] = min(float(getattr(run, axis)[-1]), ends.get(run.cell, np.inf))
    return np.array([area(run, axis, ends[run.cell] if budget is None else budget) for run in runs])
