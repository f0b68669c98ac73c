"""Evaluations by `algorithms.evaluate` that belong to a run."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithms.config.plain_yaml import load_yaml
from algorithms.report.run_data import ReportError, RunData, read_object
from algorithms.train.run_directory import RunDirectory

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
                found.append((f"{run.label}, {checkpoint}", folder, read_object(folder / _SCORES)))
    times = Counter(label for label, _, _ in found)
    return [
        FoundEvaluation(label if times[label] == 1 else f"{label} ({folder.name}, {_size(scores)})", scores)
        for label, folder, scores in found
    ]


def _size(scores: Mapping[str, Any]) -> str:
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
    model = (config.get("rl_module") or {}).get("model") if isinstance(config, dict) else None
    if not isinstance(model, str):
        return None
    folder = Path(model).resolve()
    is_checkpoint = run.checkpoints_folder.resolve() in folder.parents
    return folder if is_checkpoint or folder.is_dir() else None
