"""Print the tables of an evaluation, and the paired differences of two."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from algorithms.config.errors import ConfigError
from algorithms.evaluation.comparison import (
    Common,
    changed_problems,
    compare,
    count_common,
    list_uncompared,
    mean_changes,
)
from algorithms.evaluation.metrics import FAILED, NO_SHARES, NOT_MEASURED, amount, difference, label
from algorithms.evaluation.results import RESPONSES, SCORES, bearing_on_answers, read_fingerprint, read_settings
from algorithms.evaluation.score_file import read_scores
from algorithms.utils.files import user_path
from algorithms.utils.statistics import Change, Score, Trend, mean_score
from r3env.printable import printable


def print_scores(scores: Mapping[str, Any], folder: Path, notes: Sequence[str] = ()) -> None:
    """Print the tables, notes on them, and the paths of the files."""
    console = Console(soft_wrap=True)
    console.print(score_table(scores))
    for benchmark, one in scores.items():
        if len(one["levels"]) > 1:
            console.print(level_table(benchmark, one["levels"]))
        if found := one.get("confidence"):
            console.print(
                _text(
                    f"{benchmark}: confidence separates correct from incorrect answers with AUC {found['auc']:.3f} "
                    f"({found['asked']:.0f} finished answers; mean {found['correct']:.2f} and {found['incorrect']:.2f})"
                )
            )
        if one["ungraded"]:
            why = "responses failed (not graded, or their environment raised) and count as incorrect"
            console.print(_text(f"{benchmark}: {one['ungraded']} {why}"))
    for note in notes:
        console.print(_text(note))
    if any(score.low is not None for one in scores.values() for score in one["scores"].values()):
        console.print("In brackets: 95 % intervals, bootstrap over problems.", highlight=False)
    console.print(_text(f"  responses {folder / RESPONSES}\n  scores    {folder / SCORES}"))


def print_comparison(first: Path, second: Path) -> None:
    """Print the paired differences of two finished evaluations.

    Raises:
        ConfigError: a folder holds no finished evaluation, the two have too few problems in common, or the answers
            of one have chosen the problems of the other.
    """
    one, other = _scores(first), _scores(second)
    settings = bearing_on_answers(read_settings(first), read_settings(second))
    _refuse_selected(first, second)
    changes = compare(one, other)
    if not changes:
        raise ConfigError(f"--compare: {first} and {second} have no benchmark with ten problems in common")
    console = Console(soft_wrap=True)
    common = count_common(one, other)
    for table in comparison_tables(changes, common, first.name, second.name):
        console.print(table)
    if means := mean_changes(one, other, changes):
        console.print(comparison_table(f"mean of {len(changes)} benchmarks: {second.name} minus {first.name}", means))
    if missing := list_uncompared(one, other):
        console.print(_text(f"not compared, as only one of the two has it: {', '.join(missing)}"))
    if few := [f"{name} ({shared.problems})" for name, shared in common.items() if shared.too_few]:
        line = f"not compared, as fewer than ten problems are in both: {', '.join(few)}"
        console.print(_text(line))
    if changed := changed_problems(one, other, _digests(first), _digests(second)):
        line = f"the same ids name different problems (text, answer or level): {', '.join(changed)}"
        console.print(_text(line))
    others = [f"  {name} {values}" for name, values in settings.items() if name != "rl_module.model"]
    if others:
        console.print(_text("\n".join(["settings that differ:", *others])))


def _text(text: str) -> Text:
    """Return text of others for the console: no character of it acts as markup, or on the terminal."""
    return Text(printable(text))


def _digests(folder: Path) -> dict[str, Any]:
    """Return the digests of each benchmark's problems; none where the folder has none: two can be compared without."""
    try:
        return dict(read_fingerprint(folder)["benchmarks"])
    except ConfigError:
        return {}


def _refuse_selected(first: Path, second: Path) -> None:
    for chosen, by in ((first, second), (second, first)):
        benchmarks = read_settings(chosen).get("benchmarks")
        hard_for = benchmarks.get("hard_for") if isinstance(benchmarks, dict) else None
        if isinstance(hard_for, str) and hard_for and user_path(hard_for).resolve() == by.resolve():
            raise ConfigError(
                f"--compare: the answers in {by} chose the problems of {chosen}, so they are worse on them by chance "
                f"alone; fix: evaluate that model again with benchmarks.hard_for={hard_for}, and compare the two"
            )


def _scores(folder: Path) -> dict[str, Any]:
    try:
        return read_scores(folder / SCORES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--compare: {folder} holds no finished evaluation ({SCORES}: {error})") from error


def score_table(benchmarks: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return one column per benchmark, one row per measure; and the mean over benchmarks where there are several."""
    table = Table(title="Evaluation", title_justify="left", title_style="bold")
    table.add_column("")
    for name, one in benchmarks.items():
        table.add_column(_text(f"{name}\n{one['problems']} problems × {one['samples']}"), justify="right")
    if len(benchmarks) > 1:
        table.add_column("mean", justify="right")
    for measure in dict.fromkeys(measure for one in benchmarks.values() for measure in one["scores"]):
        scores = [one["scores"].get(measure) for one in benchmarks.values()]
        cells = [NOT_MEASURED if score is None else _cell(score, measure) for score in scores]
        if len(benchmarks) > 1:
            cells.append(_mean_cell(benchmarks, measure) if None not in scores else NOT_MEASURED)
        table.add_row(label(measure), *cells)
    if any(one["ungraded"] for one in benchmarks.values()):
        shares = [one["ungraded"] / (one["problems"] * one["samples"]) for one in benchmarks.values()]
        mean = [sum(shares) / len(shares)] if len(shares) > 1 else []
        table.add_row(label(FAILED), *(f"{share:.1%}" for share in [*shares, *mean]))
    return table


def level_table(benchmark: str, levels: Mapping[str, Score]) -> Table:
    """Return pass@1 by level."""
    table = Table(title=_text(f"{benchmark}: pass@1 by level"), title_justify="left", title_style="bold")
    table.add_column("level")
    table.add_column("pass@1", justify="right")
    for level, score in levels.items():
        table.add_row(_text(level), _cell(score, "pass@1"))
    return table


def comparison_tables(
    changes: Mapping[str, Mapping[str, Change]], common: Mapping[str, Common], first: str, second: str
) -> list[Table]:
    """Return one table per benchmark: the paired difference of every measure."""
    return [
        comparison_table(
            f"{benchmark}: {second} minus {first}, {common[benchmark].problems} of {first}'s "
            f"{common[benchmark].of_first} and {second}'s {common[benchmark].of_second} problems",
            measures,
        )
        for benchmark, measures in changes.items()
    ]


def comparison_table(title: str, changes: Mapping[str, Change]) -> Table:
    """Return the difference of every measure."""
    table = Table(title=_text(title), title_justify="left", title_style="bold")
    for column in ("", "difference", "95 % interval", ""):
        table.add_column(column, justify="right" if column else "left")
    for measure, change in changes.items():
        mean, low, high = (difference(value, measure) for value in (change.mean, change.low, change.high))
        if change.is_none:
            table.add_row(label(measure), mean, "", "the same on every problem")
            continue
        verdict = {Trend.ROSE: "higher", Trend.FELL: "lower"}.get(change.trend, "within noise")
        table.add_row(label(measure), mean, f"{low} to {high}", verdict)
    return table


def _mean_cell(benchmarks: Mapping[str, Mapping[str, Any]], measure: str) -> str:
    values = [[problem[measure] for problem in one["by_problem"].values()] for one in benchmarks.values()]
    return _cell(mean_score(values, share=measure not in NO_SHARES), measure)


def _cell(score: Score, measure: str) -> str:
    value = amount(score.mean, measure)
    if score.low is None or score.high is None:
        return value
    return f"{value}  [{amount(score.low, measure)}, {amount(score.high, measure)}]"
