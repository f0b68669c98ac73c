"""The figures of the suite: pass@1 over generated tokens, and performance profiles."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import EngFormatter, PercentFormatter

from benchmarks.looks import Line, draw_lines
from benchmarks.suite.records import REFERENCE, TOKENS, Run, areas
from benchmarks.suite.statistics import DRAWS, base_weights, performance_profile, stratified_mean

_POINTS = 121
# What is drawn of some runs: from their places [runs], and their weights [draws, runs] for its draws.
_Line = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


def draw_curves(runs: Sequence[Run], path: Path, *, tokens: float = TOKENS, draws: int = DRAWS) -> Path:
    """Draw each arm's held-out pass@1 over generated tokens, every task with the same weight; replace the PNG.

    The band holds 95 % of the bootstrap draws at each point. Runs are straight between evaluations, and not smoothed.

    Args:
        runs: those of the test.
        path: the PNG to write.
        tokens: right end.
        draws: bootstrap draws.

    Returns:
        `path`.

    Raises:
        ValueError: a task and difficulty has a single base.
    """
    where = np.linspace(0, tokens, _POINTS)
    values = np.array([np.interp(where, run.tokens, run.pass_at_1) for run in runs])
    tasks = np.array([run.task for run in runs])

    def mean(members: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        return stratified_mean(values[members], tasks[members], weights)

    labels = "Held-out pass@1, mean over tasks", "generated tokens"
    return draw_lines(path, labels, where, _lines(runs, draws, mean), EngFormatter(sep=""))


def draw_profiles(runs: Sequence[Run], path: Path, *, tokens: float = TOKENS, draws: int = DRAWS) -> Path:
    """Draw each arm's share of runs whose area over generated tokens is above a threshold; replace the PNG.

    Args:
        runs: those of the test.
        path: the PNG to write.
        tokens: budget, as in the report.
        draws: bootstrap draws of the 95 % bands.

    Returns:
        `path`.

    Raises:
        ValueError: a run ends before `tokens`, or a task and difficulty has a single base.
    """
    scores = areas(runs, "tokens", tokens)
    where = np.linspace(0, max(0.01, 1.02 * scores.max()), _POINTS)

    def share(members: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        return performance_profile(scores[members], where, weights)

    labels = "Share of runs above a threshold", "threshold: mean held-out pass@1 over generated tokens"
    return draw_lines(path, labels, where, _lines(runs, draws, share), PercentFormatter(1.0))


def _lines(runs: Sequence[Run], draws: int, line: _Line) -> dict[str, Line]:
    """Return arm → its line and band; the reference comes first."""
    weights = base_weights([run.stratum for run in runs], [run.cluster for run in runs], draws)
    arms = np.array([run.arm for run in runs])
    found = {}
    for arm in sorted(set(arms.tolist()), key=lambda arm: (arm != REFERENCE, arm)):
        members = np.flatnonzero(arms == arm)
        ends = np.quantile(line(members, weights[:, members]), (0.025, 0.975), axis=0)
        found[arm] = Line(len(members), line(members, None), ends)
    return found
