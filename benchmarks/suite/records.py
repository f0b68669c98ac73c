"""Finished runs of the suite, one JSON object per line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

AXES = ("tokens", "cpu_s")
DIFFICULTIES = ("easy", "medium", "blind")
FINAL = ("pass@1", "pass@8", "entropy", "truncated")
_ONE_OF = {"phase": ("test", "sweep"), "difficulty": DIFFICULTIES, "skill": ("none", "own_failures")}


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


def read(path: Path) -> list[Run]:
    """Read the runs, in the file's order; a last line that a kill cut off is left out, and so is a repeated line.

    Raises:
        ValueError: another line is no run, or two lines of one run differ.
    """
    found: dict[str, tuple[Run, Any]] = {}
    lines = path.read_bytes().rstrip().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}:{number}: no JSON: {error}") from error
        try:
            run = _run(content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: no run: {type(error).__name__}: {error}") from error
        if run.name in found and found[run.name][1] != content:
            raise ValueError(f"{path}:{number}: {run.name} is there already with another result")
        found.setdefault(run.name, (run, content))
    return [run for run, _ in found.values()]


def _run(content: Mapping[str, Any]) -> Run:
    for field, known in _ONE_OF.items():
        if content[field] not in known:
            raise ValueError(f"{field} is {content[field]!r}, not one of {', '.join(known)}")
    steps, tokens, cpu_s, pass_at_1 = (
        np.array([point[field] for point in content["curve"]], float) for field in ("step", *AXES, "pass@1")
    )
    for field, values in (("step", steps), ("tokens", tokens), ("cpu_s", cpu_s)):
        if not len(values) or not np.all(np.isfinite(values)) or values[0] < 0 or np.any(np.diff(values) < 0):
            raise ValueError(f"curve: {field} is empty, negative, falling or no number")
    if tokens[0] != 0:
        raise ValueError(f"curve: begins at {tokens[0]:g} tokens, not before training")
    if not np.all((pass_at_1 >= 0) & (pass_at_1 <= 1)):
        raise ValueError("curve: pass@1 is not from 0 to 1")
    return Run(
        phase=content["phase"],
        task=str(content["task"]),
        difficulty=content["difficulty"],
        skill=content["skill"],
        base=int(content["base"]),
        arm=str(content["arm"]),
        seed=int(content["seed"]),
        lr=float(content["lr"]),
        steps=steps,
        tokens=tokens,
        cpu_s=cpu_s,
        pass_at_1=pass_at_1,
        final={field: float(content["final"][field]) for field in FINAL},
        wall_s=float(content["wall_s"]),
        protocol=str(content["protocol"]),
        commit=str(content["commit"]),
    )


def at(run: Run, axis: str, x: float, *, hold: bool = False) -> float:
    """Return held-out pass@1 at a point of the run, between two measurements on a straight line.

    Args:
        run: a run.
        axis: `tokens` or `cpu_s`.
        x: generated tokens or CPU seconds, from 0; before the first measurement it is the first one's.
        hold: keep the last value behind the run's end.

    Raises:
        ValueError: an unknown axis, a negative point, or one behind the end without `hold`.
    """
    _check(run, axis, x, hold)
    return float(np.interp(x, _points(run, axis), run.pass_at_1))


def area(run: Run, axis: str, budget: float, *, hold: bool = False) -> float:
    """Return the mean held-out pass@1 over [0, budget], the curve being straight between two measurements.

    Args:
        run: a run.
        axis: `tokens` or `cpu_s`.
        budget: generated tokens or CPU seconds, positive.
        hold: keep the last value behind the run's end.

    Raises:
        ValueError: an unknown axis, no positive budget, or one behind the end without `hold`.
    """
    if not budget > 0:
        raise ValueError(f"a budget of {budget:g} {axis} is not positive")
    ends = [at(run, axis, x, hold=hold) for x in (0.0, budget)]
    points = _points(run, axis)
    inside = (points > 0) & (points < budget)
    places = np.concatenate([[0.0], points[inside], [budget]])
    return float(np.trapezoid(np.concatenate([ends[:1], run.pass_at_1[inside], ends[1:]]), places) / budget)


def areas(runs: Sequence[Run], axis: str, budget: float | None = None, *, hold: bool = False) -> np.ndarray:
    """Return each run's area, as `area` does.

    Args:
        runs: at least one.
        axis: `tokens` or `cpu_s`.
        budget: the same for all runs; by default, for each task, difficulty and skill, where its shortest run ends.
        hold: keep the last value behind a run's end.

    Returns:
        [runs].

    Raises:
        ValueError: as `area`.
    """
    ends: dict[str, float] = {}
    for run in runs:
        ends[run.cell] = min(float(_points(run, axis)[-1]), ends.get(run.cell, np.inf))
    return np.array([area(run, axis, ends[run.cell] if budget is None else budget, hold=hold) for run in runs])


def _points(run: Run, axis: str) -> np.ndarray:
    if axis not in AXES:
        raise ValueError(f"no axis {axis!r}: {' or '.join(AXES)}")
    return getattr(run, axis)


def _check(run: Run, axis: str, x: float, hold: bool) -> None:
    end = float(_points(run, axis)[-1])
    if not 0 <= x <= (np.inf if hold else end):
        raise ValueError(f"{run.name}: {x:g} {axis} is not within its curve, which ends at {end:g}")
