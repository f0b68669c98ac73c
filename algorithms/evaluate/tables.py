"""Scores and comparisons as tables for people."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from algorithms.evaluate.comparison import Common
from algorithms.evaluate.scores import NO_SHARES, Score, mean_score
from algorithms.runs.bootstrap import Change, Trend

_IN_TOKENS = "mean_tokens"


def score_table(benchmarks: Mapping[str, Mapping[str, Any]]) -> Table:
    """One column a benchmark, one row a measure; and the mean over benchmarks where there are several."""
    table = Table(title="Evaluation", title_justify="left", title_style="bold")
    table.add_column("")
    for name, one in benchmarks.items():
        table.add_column(f"{name}\n{one['problems']} problems × {one['samples']}", justify="right")
    if len(benchmarks) > 1:
        table.add_column("mean", justify="right")
    for measure in dict.fromkeys(measure for one in benchmarks.values() for measure in one["scores"]):
        scores = [one["scores"].get(measure) for one in benchmarks.values()]
        cells = ["–" if score is None else _cell(score, measure) for score in scores]
        if len(benchmarks) > 1:
            cells.append(_mean_cell(benchmarks, measure) if None not in scores else "–")
        table.add_row(_label(measure), *cells)
    return table


def level_table(benchmark: str, levels: Mapping[str, Score]) -> Table:
    """pass@1 by level."""
    table = Table(title=f"{benchmark}: pass@1 by level", title_justify="left", title_style="bold")
    table.add_column("level")
    table.add_column("pass@1", justify="right")
    for level, score in levels.items():
        table.add_row(level, _cell(score, "pass@1"))
    return table


def comparison_tables(
    changes: Mapping[str, Mapping[str, Change]], common: Mapping[str, Common], first: str, second: str
) -> list[Table]:
    """One table a benchmark: the paired difference of every measure."""
    return [
        comparison_table(
            f"{benchmark}: {second} minus {first}, {common[benchmark].problems} of {first}'s "
            f"{common[benchmark].of_first} and {second}'s {common[benchmark].of_second} problems",
            measures,
        )
        for benchmark, measures in changes.items()
    ]


def comparison_table(title: str, changes: Mapping[str, Change]) -> Table:
    """The difference of every measure."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("", "difference", "95 % interval", ""):
        table.add_column(column, justify="right" if column else "left")
    for measure, change in changes.items():
        mean, low, high = (_difference(value, measure) for value in (change.mean, change.low, change.high))
        if change.is_none:
            table.add_row(_label(measure), mean, "", "the same on every problem")
            continue
        verdict = {Trend.ROSE: "higher", Trend.FELL: "lower"}.get(change.trend, "within noise")
        table.add_row(_label(measure), mean, f"{low} to {high}", verdict)
    return table


def _mean_cell(benchmarks: Mapping[str, Mapping[str, Any]], measure: str) -> str:
    values = [[problem[measure] for problem in one["by_problem"].values()] for one in benchmarks.values()]
    return _cell(mean_score(values, share=measure not in NO_SHARES), measure)


def _label(measure: str) -> str:
    return measure.replace("_", " ")


def _cell(score: Score, measure: str) -> str:
    value = _number(score.mean, measure)
    if score.low is None or score.high is None:
        return value
    return f"{value}  [{_number(score.low, measure)}, {_number(score.high, measure)}]"


def _number(value: float, measure: str) -> str:
    return f"{value:,.1f}" if measure == _IN_TOKENS else f"{100 * value:.1f}%"


def _difference(value: float, measure: str) -> str:
    """Of two shares: points, which are not per cent of the first."""
    return f"{value:+,.1f}" if measure == _IN_TOKENS else f"{100 * value:+.1f} points"
