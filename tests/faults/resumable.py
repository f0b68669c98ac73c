"""Whether a run directory has all that was done before a power failure, and can be resumed; no Ray is started."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms.history.store import ReplayHistory
from algorithms.train.manifest import damage
from algorithms.train.rollout_files import read_rollouts
from algorithms.train.run_directory import RunDirectory, checkpoint_steps
from algorithms.train.stored_run import StoredRun, reading_history
from algorithms.utils.errors import CheckpointError
from tests.command_line.conftest import untimed


def shortcomings(run: Path, done: int, checkpoint: int, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List what is missing or broken, in words.

    Args:
        run: its directory; may be missing while nothing is done.
        done: steps that are over.
        checkpoint: the step of the checkpoint that is due by then; 0: none.
        rows: of metrics.jsonl of the undisturbed run, without what the clock has a part in.
    """
    if done < 0 and not run.exists():
        return []  # it had not begun
    try:
        with StoredRun.open(run, "r3_grpo") as stored:
            return [*_files(stored.directory, done, checkpoint, rows), *_history(stored, done)]
    except (CheckpointError, ValueError, sqlite3.DatabaseError) as error:
        return [f"refused: {error}"]


def _files(run: RunDirectory, done: int, checkpoint: int, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    stored = [untimed(row) for row in run.read_metrics()]
    if len(stored) < done or stored != list(rows[: len(stored)]):
        yield f"metrics.jsonl has the steps {[row['step'] for row in stored]}, {done} are done"
    for step in range(1, done + 1):
        if not run.rollout_file(step).exists():
            yield f"no rollouts of step {step}"
    for file in run.rollouts_folder.glob("step-*.parquet"):
        with _whole(file) as broken:
            read_rollouts(file)
        yield from broken
    for file in (run.evaluation_file, run.summary_file):
        with _whole(file) as broken:
            json.loads(file.read_bytes() if file.exists() else b"{}")
        yield from broken
    if done >= 0 and "before" not in run.read_evaluation():
        yield "evaluation.json lacks the evaluation before training"
    if run.curves_file.exists() and not run.curves_file.read_bytes().endswith(b"IEND\xaeB`\x82"):
        yield "curves.png is not whole"
    steps = checkpoint_steps(run.checkpoints_folder)
    if max(steps, default=0) < checkpoint:
        yield f"no checkpoint of step {checkpoint}"
    broken_steps = {step: damage(run.checkpoints_folder / f"step_{step:06d}") for step in steps[:-1]}
    yield from (f"checkpoint {step}: {said}" for step, said in broken_steps.items() if said)


def _history(stored: StoredRun, done: int) -> Iterator[str]:
    with reading_history(stored.directory):
        history = ReplayHistory(path=stored.directory.history_file)
    with contextlib.closing(history), contextlib.closing(sqlite3.connect(stored.directory.history_file)) as database:
        (state,) = database.execute("PRAGMA integrity_check").fetchone()
        if state != "ok":
            yield f"history.sqlite: {state}"
        (newest,) = database.execute("SELECT coalesce(max(step), -1) FROM responses").fetchone()
        if newest + 1 < done:
            yield f"history.sqlite ends with step {newest + 1}, {done} are done"
        if stored.checkpoint is None:
            history.rollback(0)
        else:
            history.restore({}, json.loads((stored.checkpoint / "state.json").read_bytes())["mechanisms"]["history"])


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[list[str]]:
    broken: list[str] = []
    try:
        yield broken
    except Exception as error:
        broken.append(f"{file.name} cannot be read ({error})")
