"""Tabulate a run's evaluations: its own before and after training, and those by `algorithms.evaluate`."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithms.config.plain_yaml import load_yaml
from algorithms.evaluation.metrics import (
    FAILED,
    NO_SHARES,
    NOT_MEASURED,
    label,
    natural,
    pass_at_k,
    scores_by_level,
)
from algorithms.evaluation.score_file import read_scores
from algorithms.reporting.run_data import ReportError, RunData
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.statistics import in_points, paired_bootstrap, score

# What `algorithms.evaluate` writes, and where without `--out`.
_CONFIG, _SCORES, _FOLDER = "evaluation.yaml", "scores.json", "evaluations"


@dataclass(frozen=True)
class FoundEvaluation:
    """One finished evaluation.

    Args:
        label: the run, and which checkpoint of it; where one was evaluated more than once, the folder and the
            size as well.
        scores: of scores.json, by benchmark.
    """

    label: str
    scores: Mapping[str, Any]


def found_evaluations(runs: Sequence[RunData]) -> list[FoundEvaluation]:
    """Find evaluations in the runs' own folders, and of their checkpoints in `evaluations/` here or beside the runs.

    Raises:
        ReportError: one of their files cannot be read.
    """
    found: list[tuple[str, Path, dict[str, Any]]] = []
    for run in runs:
        for folder in dict.fromkeys(_folders(run.directory.path)):
            model = _model(folder / _CONFIG, run.directory)
            own = folder.is_relative_to(run.directory.path)
            if own or (model is not None and model.is_relative_to(run.directory.path.resolve())):
                checkpoint = model.parent.name if model is not None and model.name == "model" else folder.name
                found.append((f"{run.label}, {checkpoint}", folder, _scores(folder / _SCORES)))
    times = Counter(label for label, _, _ in found)
    return [
        FoundEvaluation(label if times[label] == 1 else f"{label} ({folder.name}, {_sizes(scores)})", scores)
        for label, folder, scores in found
    ]


def _scores(file: Path) -> dict[str, Any]:
    try:
        return read_scores(file)
    except (OSError, ValueError) as error:
        raise ReportError(f"{file}: cannot be read ({error}); fix: move the evaluation away") from error


def _sizes(scores: Mapping[str, Any]) -> str:
    """Format problems × samples of the benchmarks, equal ones once."""
    return ", ".join(dict.fromkeys(f"{one['problems']} × {one['samples']}" for one in scores.values()))


def _folders(run: Path) -> Iterator[Path]:
    for pattern in (f"*/{_SCORES}", f"*/*/{_SCORES}"):
        yield from (file.parent for file in sorted(run.glob(pattern)))
    for place in (Path(_FOLDER), run.parent / _FOLDER):
        yield from (file.parent.resolve() for file in sorted(place.glob(f"*/{_SCORES}")))


def _model(path: Path, run: RunDirectory) -> Path | None:
    """Return the folder that was evaluated; None for a model of the Hub, or where the file names none.

    A checkpoint that is gone counts as well: a run keeps the last few.
    """
    if not path.is_file():
        return None
    try:
        config = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: cannot be read ({error}); fix: move the evaluation away") from error
    module = config.get("rl_module") if isinstance(config, dict) else None
    model = module.get("model") if isinstance(module, dict) else None
    if not isinstance(model, str) or "\0" in model:
        return None
    folder = Path(model).resolve()
    is_checkpoint = run.checkpoints_folder.resolve() in folder.parents
    return folder if is_checkpoint or folder.is_dir() else None


SIZE = "problems × samples"
_COUNTS = ("problems", "samples")
# More levels than these become rows.
MOST_COLUMNS = 8


@dataclass(frozen=True)
class Table:
    """Cells of text; the first `labels` columns name the row.

    Args:
        rows: each as long as `head`.
        prose: whether cells are texts, not numbers.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    note: str = ""
    prose: bool = False


def evaluation_tables(runs: Sequence[RunData], found: Sequence[FoundEvaluation]) -> list[Table]:
    """Tabulate the evaluations before and after training, then those of `algorithms.evaluate`."""
    tables = [_before_and_after(runs), _own_levels(runs), *map(_examples, runs), *_benchmarks(found)]
    return [table for table in tables if table.rows]


def _before_and_after(runs: Sequence[RunData]) -> Table:
    sides = [one for run in runs for one in _sides(run).values()]
    measures = list(dict.fromkeys(name for one in sides for name in one.get("metrics") or {} if name not in _COUNTS))
    rows = [row for run in runs for row in _rows_of(run, measures)]
    trained_on = all(run.setting("evaluation", "data") is None for run in runs)
    return Table(
        f"{'Training' if trained_on else 'Held-out'} problems, before and after training",
        ["run", "", *map(label, measures), SIZE],
        rows,
        labels=2,
        note="In brackets: 95 % intervals, bootstrap over problems; of a change, over its differences problem by "
        "problem. No intervals below ten problems.",
    )


def _rows_of(run: RunData, measures: Sequence[str]) -> list[list[str]]:
    sides = _sides(run)
    rows = []
    for side, one in sides.items():
        metrics = one.get("metrics") or {}
        size = f"{metrics.get('problems', 0):.0f} × {metrics.get('samples', 0):.0f}"
        name = side if side == "before" else f"{side} step {one.get('step', '?')}"
        rows.append([run.label, name, *(_measured(one, measure) for measure in measures), size])
    if len(sides) == 2:
        rows.append(
            [run.label, "change", *(_change(sides["before"], sides["after"], measure) for measure in measures), ""]
        )
    return rows


def _sides(run: RunData) -> dict[str, Mapping[str, Any]]:
    return {side: run.evaluation[side] for side in ("before", "after") if isinstance(run.evaluation.get(side), Mapping)}


def _measured(side: Mapping[str, Any], measure: str) -> str:
    value = (side.get("metrics") or {}).get(measure)
    by_problem = list(_by_problem(side, measure).values())
    if not by_problem:
        return _number(value, measure)
    interval = score(by_problem)
    return _with_interval(value, interval.low, interval.high, measure)


def _change(before: Mapping[str, Any], after: Mapping[str, Any], measure: str) -> str:
    first, last = ((side.get("metrics") or {}).get(measure) for side in (before, after))
    if not isinstance(first, int | float) or not isinstance(last, int | float):
        return NOT_MEASURED
    change = paired_bootstrap(_by_problem(before, measure), _by_problem(after, measure))
    if change is None:
        return _number(last - first, measure, sign=True)
    return _with_interval(last - first, change.low, change.high, measure, sign=True)


def _by_problem(side: Mapping[str, Any], measure: str) -> dict[str, float]:
    """pass@k by problem; empty for what is not kept by problem."""
    name, samples = re.fullmatch(r"pass@(\d+)", measure), round((side.get("metrics") or {}).get("samples") or 0)
    if name is None or int(name[1]) > samples:
        return {}
    return {
        uid: pass_at_k(samples, round(share * samples), int(name[1]))
        for uid, share in (side.get("correct") or {}).items()
    }


def _own_levels(runs: Sequence[RunData]) -> Table:
    """pass@1 by level, where the problems have levels."""
    found = []
    for run in runs:
        for side, one in _sides(run).items():
            found_scores = scores_by_level(one.get("correct") or {}, one.get("levels") or {})
            cells = {level: _with_interval(s.mean, s.low, s.high, "pass@1") for level, s in found_scores.items()}
            found.append(([run.label, side], cells))
    return _level_table("pass@1 by level", ["run", ""], found)


def _level_table(title: str, head: Sequence[str], found: Iterable[tuple[Sequence[str], Mapping[str, str]]]) -> Table:
    found = [(labels, cells) for labels, cells in found if cells]
    levels = sorted({level for _, cells in found for level in cells}, key=natural)
    if len(levels) > MOST_COLUMNS:
        sides = [" ".join(filter(None, labels)) for labels, _ in found]
        by_level = [[level, *(cells.get(level, NOT_MEASURED) for _, cells in found)] for level in levels]
        return Table(title, ["level", *sides], by_level)
    rows = [[*labels, *(cells.get(level, NOT_MEASURED) for level in levels)] for labels, cells in found]
    return Table(title, [*head, *(f"level {level}" for level in levels)], rows, labels=len(head))


def _examples(run: RunData) -> Table:
    """Return the same problems' answers before and after training."""
    found = {
        side: {one["problem"]: f"{'✓' if one['correct'] else '✗'} {one['response']}" for one in examples}
        for side, evaluation in _sides(run).items()
        if (examples := evaluation.get("examples"))
    }
    # A file of problems may have been edited before a resume.
    problems = dict.fromkeys(problem for answers in found.values() for problem in answers)
    return Table(
        f"{run.label}: answers to the same problems",
        ["problem", *found],
        [[problem, *(answers.get(problem, NOT_MEASURED) for answers in found.values())] for problem in problems],
        note="The first answer to each; ✓: correct.",
        prose=True,
    )


def _benchmarks(found: Sequence[FoundEvaluation]) -> list[Table]:
    tables = []
    for benchmark in dict.fromkeys(name for one in found for name in one.scores):
        having = [one for one in found if benchmark in one.scores]
        measures = list(dict.fromkeys(name for one in having for name in one.scores[benchmark]["scores"]))
        failed = [label(FAILED)] if any(one.scores[benchmark].get("ungraded") for one in having) else []
        rows = [
            [
                one.label,
                *_cells(one.scores[benchmark]["scores"], measures),
                *(_failed(one, benchmark) for _ in failed),
                _size(one, benchmark),
            ]
            for one in having
        ]
        head = ["evaluation", *map(label, measures), *failed, SIZE]
        tables.append(Table(f"{benchmark}, by algorithms.evaluate", head, rows))
        levels = [([one.label], _level_cells(one.scores[benchmark]["levels"])) for one in having]
        tables.append(_level_table(f"{benchmark}: pass@1 by level", ["evaluation"], levels))
    return tables


def _size(one: FoundEvaluation, benchmark: str) -> str:
    return f"{one.scores[benchmark]['problems']} × {one.scores[benchmark]['samples']}"


def _failed(one: FoundEvaluation, benchmark: str) -> str:
    """Return the share of answers that nothing is known of."""
    found = one.scores[benchmark]
    return _number(found.get("ungraded", 0) / max(1, found["problems"] * found["samples"]), FAILED)


def _cells(scores: Mapping[str, Mapping[str, Any]], measures: Sequence[str]) -> list[str]:
    return [_score_cell(scores[measure], measure) if measure in scores else NOT_MEASURED for measure in measures]


def _level_cells(levels: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {level: _score_cell(one, "pass@1") for level, one in levels.items()} if len(levels) > 1 else {}


def _score_cell(one: Mapping[str, Any], measure: str) -> str:
    return _with_interval(one.get("mean"), one.get("low"), one.get("high"), measure)


def _with_interval(value: Any, low: float | None, high: float | None, measure: str, *, sign: bool = False) -> str:
    text = _number(value, measure, sign=sign)
    if low is None or high is None or text == NOT_MEASURED:
        return text
    return f"{text} [{_number(low, measure, sign=sign)}, {_number(high, measure, sign=sign)}]"


def _number(value: Any, measure: str, *, sign: bool = False) -> str:
    if not isinstance(value, int | float):
        return NOT_MEASURED
    plus = "+" if sign else ""
    decimals = NO_SHARES.get(measure)
    text = f"{in_points(value):{plus}.1f} %" if decimals is None else f"{value:{plus},.{decimals}f}"
    return text.replace("-", "−")
