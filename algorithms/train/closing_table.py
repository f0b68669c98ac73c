"""The table at the end of a run: before, after, and whether the difference is more than noise."""

import re
import resource
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from algorithms.evaluation.metrics import FAILED, amount, difference, label
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.progress import duration
from algorithms.utils.statistics import Trend, in_points, is_number, paired_bootstrap
from r3env.printable import printable

Correctness = Mapping[str, float]
HELD_OUT = "held-out"


def problems_named(data: object) -> str:
    """Return which problems are evaluated, for people; `data` is `evaluation.data`."""
    return HELD_OUT if data else "training"


def print_closing_table(
    summary: Mapping[str, Any],
    path: Path,
    before: Correctness | None = None,
    after: Correctness | None = None,
    *,
    problems: str = HELD_OUT,
    console: Console | None = None,
) -> None:
    """Print the table, one sentence on the gain, and where the run's files are.

    Args:
        summary: what summary.json holds; either side of its `eval` may be missing.
        path: the run's folder.
        before: uid → share of correct samples before training. Without both sides noise goes unmentioned.
        after: the same after training.
        problems: which problems were evaluated.
        console: standard output by default.
    """
    console = console or Console(soft_wrap=True)
    evaluations = summary.get("eval") or {}
    first, last = evaluations.get("before") or {}, evaluations.get("after") or {}
    if first or last:
        console.print(comparison_table(first, last, problems))
    sentence = gain_sentence(first, last, before or {}, after or {}, problems)
    if sentence:
        console.print(Text(printable(sentence)))
    ended_by = str(summary.get("ended_by") or "run.steps")
    if not ended_by.startswith("run.steps"):
        console.print(Text(printable(f"Training ended after step {summary.get('steps')}, by {ended_by}.")))
    console.print(cost_text(summary), highlight=False)
    console.print(Text(printable(files_text(path))))


def comparison_table(before: Mapping[str, Any], after: Mapping[str, Any], problems: str = HELD_OUT) -> Table:
    """Return a table of before, after and change, one row per measure that either side has."""
    table = Table(title=Text(printable(f"{problems.capitalize()} problems")), title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    for key in _measures(before, after):
        first, last = before.get(key), after.get(key)
        change = last - first if is_number(first) and is_number(last) else None
        table.add_row(label(key), amount(first, key), amount(last, key), difference(change, key))
    return table


def gain_sentence(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    correct_before: Correctness,
    correct_after: Correctness,
    problems: str = HELD_OUT,
) -> str:
    """Summarize the change of held-out pass@1 in one sentence that claims no more than the data carry.

    With per-problem results (ten problems or more) the change is set against a paired bootstrap over
    problems; without them only the two numbers are named. Empty when pass@1 was not measured twice.
    """
    first, last = before.get("pass@1"), after.get("pass@1")
    if not (is_number(first) and is_number(last)):
        return ""
    subject = "Held-out pass@1" if problems == HELD_OUT else f"Pass@1 on {problems} problems"
    change = paired_bootstrap(correct_before, correct_after)
    if change is None:
        numbers = f"{subject} went from {first:.1%} to {last:.1%}"
        return f"{numbers}; too few per-problem results to distinguish a change from noise."
    interval = (
        f"95 % interval {in_points(change.low):+.1f} to {in_points(change.high):+.1f}, "
        f"paired bootstrap over {change.problems} problems"
    )
    points = f"{in_points(abs(change.mean)):.1f} points"
    if change.trend is Trend.WITHIN_NOISE:
        return f"{subject} changed by {in_points(change.mean):+.1f} points, which is within noise ({interval})."
    return f"{subject} {change.trend} by {points} ({interval})."


def cost_text(summary: Mapping[str, Any]) -> str:
    """Say how long the run took, and the memory of this process: of one with engine and learner within, of all."""
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    gib = kib / 2 ** (30 if sys.platform == "darwin" else 20)
    took = f"Took {duration(summary['wall_s'])}; " if is_number(summary.get("wall_s")) else ""
    return f"{took}this process used at most {gib:.1f} GiB of memory."


def files_text(path: Path) -> str:
    """Name the run's files that exist, and the command that opens TensorBoard."""
    run = RunDirectory(path)
    files = (
        ("curves", run.curves_file),
        ("summary", run.summary_file),
        ("metrics", run.metrics_file),
        ("checkpoints", run.checkpoints_folder),
    )
    lines = [f"  {name:<12}{file}" for name, file in files if file.exists()]
    if any(path.glob("events.out.tfevents.*")):
        lines.append(f"  {'TensorBoard':<12}tensorboard --logdir {shlex.quote(str(path.parent))}")
    return "\n".join(lines)


def _measures(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    keys = {key for key in (*before, *after) if is_number(before.get(key)) or is_number(after.get(key))}
    passes = sorted((key for key in keys if re.fullmatch(r"pass@\d+", key)), key=lambda key: int(key[5:]))
    # A row of the table only where answers failed.
    keys -= set() if any(side.get(FAILED) for side in (before, after)) else {FAILED}
    others = ("pass@1_after_reflection", FAILED, "mean_tokens", "truncated", "no_answer", "distinct")
    return [*passes, *(key for key in others if key in keys)]
