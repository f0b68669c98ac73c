"""What an evaluation prints: its tables, and paired differences of two."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.configuration.errors import ConfigError
from algorithms.evaluate.comparison import changed_problems, compare, in_common, left_out, mean_changes
from algorithms.evaluate.differences import bearing_on_answers
from algorithms.evaluate.results import RESPONSES, SCORES, read_asked, read_settings
from algorithms.evaluate.tables import comparison_table, comparison_tables, level_table, score_table


def show(scores: Mapping[str, Any], folder: Path) -> None:
    """Print the tables, and where everything is."""
    from rich.console import Console

    console = Console(soft_wrap=True)
    console.print(score_table(scores))
    for benchmark, one in scores.items():
        if len(one["levels"]) > 1:
            console.print(level_table(benchmark, one["levels"]))
        if one["ungraded"]:
            console.print(f"{benchmark}: {one['ungraded']} responses could not be graded and count as wrong")
    if any(score.low is not None for one in scores.values() for score in one["scores"].values()):
        console.print("In brackets: 95 % intervals, bootstrap over problems.", highlight=False)
    console.print(f"  responses {folder / RESPONSES}\n  scores    {folder / SCORES}", highlight=False, markup=False)


def show_comparison(first: Path, second: Path) -> None:
    """Print the paired differences of two finished evaluations.

    Raises:
        ConfigError: a folder holds no finished evaluation, the two have too few problems in common, or the answers
            of one have chosen the problems of the other.
    """
    from rich.console import Console

    one, other = _scores(first), _scores(second)
    settings = bearing_on_answers(read_settings(first), read_settings(second))
    _refuse_selected(first, second)
    changes = compare(one, other)
    if not changes:
        raise ConfigError(f"--compare: {first} and {second} have no benchmark with ten problems in common")
    console = Console(soft_wrap=True)
    common = in_common(one, other)
    for table in comparison_tables(changes, common, first.name, second.name):
        console.print(table)
    if means := mean_changes(one, other, changes):
        console.print(comparison_table(f"mean of {len(changes)} benchmarks: {second.name} minus {first.name}", means))
    if missing := left_out(one, other):
        console.print(f"not compared, as only one of them has it: {', '.join(missing)}", highlight=False, markup=False)
    if few := [f"{name} ({shared.problems})" for name, shared in common.items() if shared.too_few]:
        told = f"not compared, as fewer than ten problems are in both: {', '.join(few)}"
        console.print(told, highlight=False, markup=False)
    if changed := changed_problems(one, other, _digests(first), _digests(second)):
        told = f"the same ids stand for other problems (text, answer or level): {', '.join(changed)}"
        console.print(told, highlight=False, markup=False)
    others = [f"  {name} {values}" for name, values in settings.items() if name != "rl_module.model"]
    if others:
        console.print("\n".join(["settings that differ:", *others]), highlight=False, markup=False)


def _digests(folder: Path) -> dict[str, Any]:
    """Of each benchmark's problems; nothing where the folder does not say, which is no reason not to compare."""
    try:
        return dict(read_asked(folder).get("benchmarks") or {})
    except ConfigError:
        return {}


def _refuse_selected(first: Path, second: Path) -> None:
    for chosen, by in ((first, second), (second, first)):
        hard_for = (read_settings(chosen).get("benchmarks") or {}).get("hard_for")
        if hard_for and Path(hard_for).expanduser().resolve() == by.resolve():
            raise ConfigError(
                f"--compare: the answers in {by} have chosen the problems of {chosen}, so they are worse on them by "
                f"chance alone; fix: ask that model again with benchmarks.hard_for={hard_for}, and compare the two"
            )


def _scores(folder: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads((folder / SCORES).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--compare: {folder} holds no finished evaluation ({error})") from error
    return stored
