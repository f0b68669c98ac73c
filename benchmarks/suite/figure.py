"""The figures of the suite: pass@1 over generated tokens, and performance profiles."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import EngFormatter, PercentFormatter

from benchmarks.looks import Line, draw_lines
from benchmarks.suite.protocol import REFERENCE
from benchmarks.suite.records import Run, areas
from benchmarks.suite.statistics import DRAWS, base_weights, performance_profile, stratified_mean

_POINTS = 121
# What is drawn of some runs: from their places [runs], and their weights [draws, runs] for its draws.
_Line = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


def draw_curves(
    runs: Sequence[Run],
    path: Path,
    *,
    tokens: float | None = None,
    reference: str = REFERENCE,
    draws: int = DRAWS,
    seed: int = 0,
) -> Path:
    """Draw each arm's held-out pass@1 over generated tokens, every task with the same weight; replace the PNG.

    The band holds 95 % of the bootstrap draws at each point. Runs are straight between evaluations, and not smoothed.

    Args:
        runs: of any phase; those of the test are drawn.
        path: the PNG to write.
        tokens: right end; by default as far as all runs have got.
        reference: the arm that is on top and first in the legend.
        draws: bootstrap draws.
        seed: of their generator.

    Returns:
        `path`.

    Raises:
        ValueError: no test run, one that ends before `tokens`, or a task and difficulty with a single base.
    """
    runs = _of_the_test(runs)
    end = min(float(run.tokens[-1]) for run in runs)
    if tokens is not None and tokens > end:
        raise ValueError(f"a run ends at {end:g} tokens, before {tokens:g}")
    where = np.linspace(0, end if tokens is None else tokens, _POINTS)
    values = np.array([np.interp(where, run.tokens, run.pass_at_1) for run in runs])
    tasks = np.array([run.task for run in runs])

    def mean(members: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        return stratified_mean(values[members], tasks[members], weights)

    labels = "Held-out pass@1, mean over tasks", "generated tokens"
    weights = _weights(runs, draws, seed)
    return draw_lines(path, labels, where, _lines(runs, reference, weights, mean), EngFormatter(sep=""))


def draw_profiles(
    runs: Sequence[Run],
    path: Path,
    *,
    tokens: float | None = None,
    hold: bool = False,
    reference: str = REFERENCE,
    draws: int = DRAWS,
    seed: int = 0,
) -> Path:
    """Draw each arm's share of runs whose area over generated tokens is above a threshold; replace the PNG.

    Args:
        runs: of any phase; those of the test are drawn.
        path: the PNG to write.
        tokens: budget, as in the report.
        hold: keep the last value of a run that ended before the budget.
        reference: the arm that is on top and first in the legend.
        draws: bootstrap draws of the 95 % bands.
        seed: of their generator.

    Returns:
        `path`.

    Raises:
        ValueError: as `draw_curves`; with `hold` a run may end before `tokens`.
    """
    runs = _of_the_test(runs)
    scores = areas(runs, "tokens", tokens, hold=hold)
    where = np.linspace(0, max(0.01, 1.02 * scores.max()), _POINTS)

    def share(members: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        return performance_profile(scores[members], where, weights)

    labels = "Share of runs above a threshold", "threshold: mean held-out pass@1 over generated tokens"
    weights = _weights(runs, draws, seed)
    return draw_lines(path, labels, where, _lines(runs, reference, weights, share), PercentFormatter(1.0))


def _of_the_test(runs: Sequence[Run]) -> list[Run]:
    found = sorted((run for run in runs if run.phase == "test"), key=lambda run: run.name)
    if not found:
        raise ValueError("no test run to draw")
    return found


def _weights(runs: Sequence[Run], draws: int, seed: int) -> np.ndarray:
    return base_weights([run.stratum for run in runs], [run.cluster for run in runs], draws, seed)


def _lines(runs: Sequence[Run], reference: str, weights: np.ndarray, line: _Line) -> dict[str, Line]:
    """Return arm → its line and band; the reference comes first."""
    arms = np.array([run.arm for run in runs])
    found = {}
    for arm in sorted(set(arms.tolist()), key=lambda arm: (arm != reference, arm)):
        members = np.flatnonzero(arms == arm)
        ends = np.quantile(line(members, weights[:, members]), (0.025, 0.975), axis=0)
        found[arm] = Line(len(members), line(members, None), ends)
    return found
