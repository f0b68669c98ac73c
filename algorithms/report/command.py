"""From run directories to a file."""

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from algorithms.report.curves import curves, panels
from algorithms.report.found_evaluations import found_evaluations
from algorithms.report.page import page
from algorithms.report.run_data import ReportError, RunData, differing, flat_settings, read_runs
from algorithms.report.selection import Most
from algorithms.report.tables import evaluation_tables
from algorithms.report.trajectories import trajectories
from algorithms.utils.files import plain, write_text

DEFAULT_NAME = "report.html"


def write_report(paths: Sequence[Path], out: Path | None, most: Most) -> Path:
    """Write the page of some runs; a file of that name is replaced whole.

    Returns:
        The file: `out`, or else `report.html` in the first run.

    Raises:
        ReportError: a folder is no run or holds what cannot be read, or the file cannot be written.
    """
    runs = read_runs(paths)
    file = out or runs[0].directory.path / DEFAULT_NAME
    title = ", ".join(run.label for run in runs)
    text = page(plain(content(runs, most)), title)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except OSError as error:
        raise ReportError(f"--out: {file} cannot be written ({error.strerror}); fix: name another file") from error
    return file


def content(runs: Sequence[RunData], most: Most) -> dict[str, Any]:
    """Gather the page's data.

    Args:
        runs: at least one.
        most: what the page may hold of trajectories.

    Raises:
        ReportError: a file of a run cannot be read.
    """
    settings = [flat_settings(run.config) for run in runs]
    return {
        "made": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "runs": [_facts(run) | {"settings": flat} for run, flat in zip(runs, settings, strict=True)],
        "differing": differing(settings),
        "panels": panels(),
        "curves": [curves(run) for run in runs],
        "tables": [asdict(table) for table in evaluation_tables(runs, found_evaluations(runs))],
        "trajectories": trajectories(runs, most),
    }


def _facts(run: RunData) -> dict[str, Any]:
    """What the head of the page says of a run."""
    last = run.rows[-1]
    planned = run.setting("run", "steps")
    return {
        "label": run.label,
        "path": str(run.directory.path),
        "algorithm": run.summary.get("algorithm") or run.config.get("algorithm"),
        "model": run.setting("rl_module", "model"),
        "data": run.setting("environment", "data") or run.setting("environment", "id"),
        "heldout": run.setting("evaluation", "data"),
        "seed": run.setting("run", "seed"),
        "steps": run.steps,
        "planned_steps": planned,
        "finished": bool(run.summary),
        "tokens": last.get("throughput/generated_tokens"),
        "wall_s": run.summary.get("wall_s") or last.get("run/wall_s"),
    }
