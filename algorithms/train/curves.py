"""Draw curves.png: a run in six panels."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from algorithms.utils.files import replaced_whole
from algorithms.utils.statistics import is_number

Rows = Sequence[Mapping[str, Any]]

# Okabe and Ito's palette: distinguishable with any color vision, and in print.
BLUE, ORANGE, GREEN, PURPLE, GRAY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#767676"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E6E6E6",
    "axes.axisbelow": True,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.dpi": 150,
}


@dataclass(frozen=True)
class Panel:
    """One panel.

    Args:
        title: above it.
        lines: tag, label and color of each.
        top: of shares, the end of the axis, by all values; they are shown in percent, from 0 on.
        from_zero: whether the axis begins at 0.
        counts: of mechanisms, which may be off: a running mean without the values themselves.
    """

    title: str
    lines: tuple[tuple[str, str, str], ...]
    top: Callable[[Sequence[float]], float] | None = None
    from_zero: bool = True
    counts: bool = False


# The panels after the accuracy, row by row; length and truncation share the place of one.
PANELS = (
    Panel("Mean training reward", (("reward/mean", "reward", BLUE),), from_zero=False),
    Panel(
        "Homogeneous groups",
        (("groups/solve_all", "all correct", GREEN), ("groups/solve_none", "all incorrect", ORANGE)),
        top=lambda _: 1.02,
    ),
    Panel("Policy entropy (nats per token)", (("policy/entropy", "entropy", PURPLE),)),
    Panel("Mean response length (tokens)", (("response/mean_tokens", "tokens", BLUE),)),
    Panel(
        "Truncated responses",
        (("response/truncated", "truncated", ORANGE),),
        top=lambda values: max([0.1, *(1.1 * value for value in values)]),
    ),
    Panel(
        "Replay, reflection and ranking (number per step)",
        (
            ("replay/added", "replayed samples", BLUE),
            ("reflection/prompts", "reflection prompts", GREEN),
            ("ranking/ranked", "ranked responses", ORANGE),
        ),
        counts=True,
    ),
)


def draw_curves(rows: Rows, summary: Mapping[str, Any], path: Path, problems: str = "held-out") -> Path:
    """Draw the run's curves.

    Args:
        rows: rows of metrics.jsonl; any tag may be missing, None or NaN, and there may be no row at all.
        summary: what summary.json holds; its `eval` gives the held-out accuracy before and after.
        path: the PNG to write; replaced whole.
        problems: which problems were evaluated.

    Returns:
        `path`.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 7))
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1, wspace=0.04, hspace=0.04)
        grid = figure.add_gridspec(2, 3)
        _draw_accuracy(figure.add_subplot(grid[0, 0]), rows, summary, problems)
        halves = grid[1, 1].subgridspec(2, 1, height_ratios=(3, 2))
        above, below = halves[0], halves[1]
        for panel, place in zip(PANELS, (grid[0, 1], grid[0, 2], grid[1, 0], above, below, grid[1, 2]), strict=True):
            axes = figure.add_subplot(place)
            _draw_panel(axes, panel, rows)
            if place is above:
                axes.tick_params(labelbottom=False)
            elif place.is_last_row():
                axes.set_xlabel("training step")
        figure.suptitle(_title(summary), x=0.01, ha="left", fontsize=11)
        with replaced_whole(path) as temporary:
            figure.savefig(temporary, format="png")
    return path


def draw_accuracy(rows: Rows, summary: Mapping[str, Any], path: Path) -> Path:
    """Draw held-out accuracy alone, in one panel; arguments as of `draw_curves`."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.2))
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        _draw_accuracy(axes, rows, summary, "held-out")
        axes.set_xlabel("training step")
        with replaced_whole(path) as temporary:
            figure.savefig(temporary, format="png")
    return path


def _draw_accuracy(axes: Axes, rows: Rows, summary: Mapping[str, Any], problems: str) -> None:
    axes.set_title(f"Accuracy on {problems} problems")
    drawn = _accuracies(rows, summary)
    for (tag, points), color, marker in zip(drawn.items(), (BLUE, ORANGE), ("o", "s"), strict=False):
        steps = sorted(points)
        axes.plot(steps, [points[step] for step in steps], color=color, marker=marker, markersize=5, label=tag)
        for step, side in ((steps[0], "left"), (steps[-1], "right"))[: len(steps)]:
            label, place = f"{points[step]:.1%}", (step, points[step])
            axes.annotate(label, place, (0, 7), textcoords="offset points", ha=side, color=color, fontsize=8)
    axes.set_ylim(0, 1.08)
    _finish(axes, bool(drawn), percent=True, legend=True)


def _accuracies(rows: Rows, summary: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Held-out accuracy by step: pass@1, and pass@k of the largest k; empty where neither was measured."""
    evaluations = summary.get("eval") or {}
    end = int(summary.get("steps") or max((row["step"] for row in rows), default=0))
    sources = [
        *((row["step"], "eval/", row) for row in rows),
        *((step, "", evaluations.get(side) or {}) for side, step in (("before", 0), ("after", end))),
    ]
    found: dict[int, dict[int, float]] = {}
    for step, prefix, source in sources:
        for key, value in source.items():
            name = re.fullmatch(rf"{prefix}pass@(\d+)", key)
            if name and is_number(value):
                found.setdefault(int(name[1]), {})[step] = value
    return {f"pass@{k}": found[k] for k in sorted({1, max(found, default=1)} & found.keys())}


def _draw_panel(axes: Axes, panel: Panel, rows: Rows) -> None:
    axes.set_title(panel.title)
    drawn = [_draw(axes, rows, *line, raw=not panel.counts) for line in panel.lines]
    if panel.counts:
        axes.margins(y=0.3)  # room for the legend
    if panel.top is not None:
        axes.set_ylim(0, panel.top([value for tag, _, _ in panel.lines for _, value in _series(rows, tag)]))
    elif panel.from_zero:
        axes.set_ylim(bottom=0)
    absent = "not used in this run" if panel.counts else "not recorded"
    _finish(axes, any(drawn), percent=panel.top is not None, legend=len(panel.lines) > 1, absent=absent)


def _draw(axes: Axes, rows: Rows, tag: str, label: str, color: str, *, raw: bool) -> bool:
    """Draw one tag: dots for a short run, a running mean over the faint values for a long one."""
    points = _series(rows, tag)
    if not points:
        return False
    steps, values = [step for step, _ in points], [value for _, value in points]
    window = max(1, len(values) // 15)
    if window == 1:
        axes.plot(steps, values, color=color, marker="o", markersize=3, label=label)
    else:
        if raw:
            axes.plot(steps, values, color=color, alpha=0.3, linewidth=0.8)
        axes.plot(steps, _running_mean(values, window), color=color, linewidth=1.8, label=label)
    return True


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over a centered window that shrinks at both ends, so that the line keeps its length."""
    half = window // 2
    spans = (values[max(0, index - half) : index + half + 1] for index in range(len(values)))
    return [sum(span) / len(span) for span in spans]


def _finish(
    axes: Axes, drawn: bool, *, percent: bool = False, legend: bool = False, absent: str = "not recorded"
) -> None:
    if not drawn:
        axes.text(0.5, 0.5, absent, transform=axes.transAxes, ha="center", va="center", color=GRAY)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0) if percent else FuncFormatter(_compact))
    if legend:
        axes.legend(loc="best")


def _compact(value: float, _: int) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


def _series(rows: Rows, tag: str) -> list[tuple[int, float]]:
    return [(row["step"], row[tag]) for row in rows if is_number(row.get(tag))]


def _title(summary: Mapping[str, Any]) -> str:
    facts: tuple[tuple[str, Callable[[Any], str]], ...] = (
        ("algorithm", str),
        ("steps", lambda value: f"{value:,} steps"),
        ("generated_tokens", lambda value: f"{value:,} tokens generated"),
        ("wall_s", lambda value: f"{value / 60:,.1f} minutes"),
    )
    return "  ·  ".join(write(summary[key]) for key, write in facts if summary.get(key) is not None)
