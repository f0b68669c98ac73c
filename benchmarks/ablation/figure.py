"""Panels of an ablation: arms as lines, 95 % bands over seeds, along generated tokens, steps or CPU seconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from algorithms.train.curves import STYLE
from algorithms.utils.files import replaced_whole
from benchmarks.ablation.intervals import half_width
from benchmarks.ablation.learned import PASS_AT_1, Curve, Learnt
from benchmarks.looks import TITLES, looks

_POINTS = 60
_AXES = {"tokens": "generated tokens", "steps": "training step"}


@dataclass(frozen=True)
class Panel:
    """One quantity along one axis.

    Args:
        axis: of `_AXES`.
        curve: picks the run's evaluations or its steps.
        smooth: whether single steps are too noisy to be shown as they are.
    """

    title: str
    name: str
    axis: str
    curve: Callable[[Learnt], Curve]
    percent: bool = True
    smooth: bool = True


def _held_out(run: Learnt) -> Curve:
    return run.held_out


def _training(run: Learnt) -> Curve:
    return run.training


PANELS = (
    Panel("Held-out pass@1", PASS_AT_1, "tokens", _held_out, smooth=False),
    Panel("Held-out pass@1", PASS_AT_1, "steps", _held_out, smooth=False),
    Panel("Groups with no correct response", "groups/solve_none", "tokens", _training),
    Panel("Truncated responses", "response/truncated", "tokens", _training),
    Panel("Response length (mean tokens)", "response/mean_tokens", "tokens", _training, percent=False),
)


def draw(results: Mapping[str, Sequence[Learnt]], path: Path) -> Path:
    """Draw all arms in two rows of panels, replace the PNG, and return its path.

    Args:
        results: arm → its finished runs, at least one each.
        path: the PNG to write.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 7))
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1, wspace=0.04, hspace=0.04)
        axes = figure.subplots(2, 3).ravel()
        for place, panel in zip(axes, PANELS, strict=False):
            _draw_panel(place, panel, results)
        axes[-1].axis("off")
        axes[-1].legend(
            handles=axes[0].lines, title="arm (seeds)\nbands: 95 %", alignment="left", fontsize=10, loc="upper left"
        )
        with replaced_whole(path) as temporary:
            figure.savefig(temporary, format="png")
    return path


def _draw_panel(axes: Axes, panel: Panel, results: Mapping[str, Sequence[Learnt]]) -> None:
    axes.set_title(panel.title)
    top = 0.0
    for arm, (color, line) in looks(list(results)).items():
        curves = [curve for curve in map(panel.curve, results[arm]) if panel.name in curve.values]
        if not curves:
            continue
        where, values = band(curves, panel)
        mean, half = values.mean(axis=0), half_width(values)
        label = f"{TITLES.get(arm, arm)} ({len(curves)})"
        axes.plot(where, mean, color=color, linestyle=line, linewidth=1.6, zorder=3, label=label)
        if len(curves) > 1:
            axes.fill_between(where, mean - half, mean + half, color=color, alpha=0.1, linewidth=0)
        top = max(top, float(values.max()))
    # The band of two seeds is many times as wide as what it is about.
    axes.set_ylim(0, min(1.0, 1.15 * top) if panel.percent and top else 1.15 * top or 1.0)
    axes.set_xlabel(_AXES[panel.axis])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def band(curves: Sequence[Curve], panel: Panel) -> tuple[np.ndarray, np.ndarray]:
    """Return the curves of one arm at common places, as far as all of them go.

    Returns:
        Places [points], and values [curves, points].
    """
    ends = [curve.along(panel.axis) for curve in curves]
    where = np.linspace(max(points[0] for points in ends), min(points[-1] for points in ends), _POINTS)
    values = np.array([curve.at(panel.name, where, axis=panel.axis) for curve in curves])
    return where, _running_mean(values) if panel.smooth else values


def _running_mean(values: np.ndarray, half: int = 3) -> np.ndarray:
    """Average over a centered window along the last axis that shrinks at both ends."""
    points = values.shape[1]
    spans = [values[:, max(0, at - half) : at + half + 1].mean(axis=1) for at in range(points)]
    return np.stack(spans, axis=1)


def _short(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
