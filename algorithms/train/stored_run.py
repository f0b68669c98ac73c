"""A stopped run for `--resume`: who may resume it, from where, and whether its files can be read."""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from algorithms.config.errors import ConfigError
from algorithms.config.files import algorithm_of, read_sections
from algorithms.config.machine import RLModuleSettings
from algorithms.config.schema import Affects, affects, replaced
from algorithms.config.sections import SECTIONS
from algorithms.grpo.config import GRPOConfig
from algorithms.train.checkpoints import Checkpoints
from algorithms.train.integrity import check_record
from algorithms.train.manifest import committed_steps
from algorithms.train.run_directory import (
    CHECKPOINTS,
    RunDirectory,
    checkpoint_path,
    checkpoint_steps,
    run_of,
    step_of,
)
from algorithms.train.run_location import check_writable
from algorithms.utils.errors import CheckpointError, is_disk_full

_FIXES = (
    (RunDirectory.read_metrics, "fix that line, or delete it"),
    (RunDirectory.read_evaluation, "put back a whole copy of it"),
)
# Result codes of SQLite's that do not mean that the file is damaged.
_OUT_OF_REACH = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
)


@dataclass(frozen=True)
class StoredRun:
    """A stopped run, and the checkpoint to resume from; None where it stopped before its first."""

    directory: RunDirectory
    checkpoint: Path | None

    @classmethod
    @contextmanager
    def open(cls, path: Path, name: str, *, to_train: bool = True) -> Iterator["StoredRun"]:
        """Find a run by its directory, or by one of its checkpoints: `runs/NAME/checkpoints/step_NNNNNN`.

        Args:
            path: the folder.
            name: the algorithm that resumes it.
            to_train: lock the directory from before a checkpoint is chosen until the block ends: another process that
                still trained would leave a newer one.

        Raises:
            CheckpointError: `path` is not a run of the algorithm `name`, another process trains there, or the
                checkpoint or a file of record is damaged.
        """
        chosen = path if path.parent.name == CHECKPOINTS else None
        try:
            directory = RunDirectory.open(run_of(path))
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        check_record(directory, step_of(chosen) if chosen else None, unlisted="pass")
        if not read_sections(directory.config_file):
            raise CheckpointError(f"{directory.config_file}: holds no settings; fix: put back a whole copy of it")
        if (trained_by := algorithm_of(directory.config_file)) not in (None, name):
            fix = f"python -m algorithms.{trained_by} --resume {path}"
            raise CheckpointError(f"{path}: is a run of {trained_by}, not of {name}; fix: {fix}")
        if to_train:
            check_writable(directory.written_paths())
        with directory.locked() if to_train else contextlib.nullcontext():
            checkpoints = Checkpoints(directory.checkpoints_folder)
            checkpoint = checkpoints.checked(chosen) if chosen else checkpoints.newest()
            step = (step_of(checkpoint) if checkpoint else None) or 0
            # Again: only now does no other process train here.
            check_record(directory, step, unlisted="refuse" if to_train else "warn")
            check_files(directory)
            _check_steps(directory, step, checkpoint)
            yield cls(directory, checkpoint)


@contextmanager
def reading_history(directory: RunDirectory) -> Iterator[None]:
    """Turn SQLite's errors on a history that is damaged, of another version or out of reach into one line.

    Raises:
        CheckpointError: the history cannot be used.
    """
    try:
        yield
    except (ValueError, sqlite3.DatabaseError) as error:
        cause = error if isinstance(error, sqlite3.DatabaseError) else error.__cause__
        if not isinstance(cause, sqlite3.DatabaseError) or is_disk_full(error):
            raise
        fix = "put back a whole copy of it, or start again"
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF in _OUT_OF_REACH:
            fix = "make it and its folder readable and writable, free space on their disk, then --resume again"
        raise CheckpointError(f"{directory.history_file}: the history cannot be used ({cause}); fix: {fix}") from error


def check_files(directory: RunDirectory) -> None:
    """Check that the files of record can be read, as after a change by hand.

    Raises:
        CheckpointError: one cannot; the line names it.
    """
    for read, fix in _FIXES:
        try:
            read(directory)
        except ValueError as error:
            raise CheckpointError(f"{error}; fix: {fix}") from error


def _check_steps(directory: RunDirectory, step: int, checkpoint: Path | None) -> None:
    """Check what the manifest does not say of a copy that was made while the run went on: that no step is missing."""
    committed = committed_steps(directory.path)
    if checkpoint is None and len(committed) > 1:
        raise CheckpointError(
            f"{directory.checkpoints_folder}: holds no checkpoint, and those of the steps "
            f"{', '.join(map(str, committed))} were there; fix: put them back, or start a new run"
        )
    rows = [row for row in directory.read_metrics() if row["step"] <= step]
    if step not in committed and len(rows) != step:
        older = [one for one in checkpoint_steps(directory.checkpoints_folder) if one <= len(rows)]
        fix = f"--resume {checkpoint_path(directory.checkpoints_folder, older[-1])}" if older else "a whole copy"
        raise CheckpointError(f"{directory.metrics_file}: has {len(rows)} of {step} steps; fix: {fix}")


def check_kept_settings(file: Path, config: GRPOConfig) -> None:
    """Check that no override changes how the run's history is written.

    Args:
        file: the run's configuration as it was.
        config: with the overrides.

    Raises:
        ConfigError: `rl_module.earlier_turns` differs.
    """
    module = read_sections(file).get("rl_module") or {}
    before = module.get("earlier_turns", RLModuleSettings().earlier_turns)
    if before != config.rl_module_settings.earlier_turns:
        raise ConfigError(
            f"rl_module.earlier_turns: the run's history holds turns of {before!r}, which no other value can read; "
            f"fix: rl_module.earlier_turns={before}, or a new run"
        )


def changed_measurement(before: str, after: str) -> list[str]:
    """List the settings that differ between two YAML configurations and change what an evaluation measures."""
    old, new = _measurement(before), _measurement(after)
    return sorted(key for key in old.keys() & new.keys() if old[key] != new[key])


def changed_training(before: str, after: str) -> bool:
    """Return whether two YAML configurations may train differently: whether more than the section `run` differs."""
    old, new = yaml.safe_load(before), yaml.safe_load(after)
    return {**old, "run": None} != {**new, "run": None}


def _measurement(config_yaml: str) -> dict[str, object]:
    """Return the settings that an evaluation's numbers depend on, beside the weights."""
    values = {section: entries for section, entries in yaml.safe_load(config_yaml).items() if section in SECTIONS}
    without_effect = replaced(SECTIONS, values)
    names = {f"{section}.{key}": value for section, entries in values.items() for key, value in (entries or {}).items()}
    return {
        name: value
        for name, value in names.items()
        if name not in without_effect and Affects.MEASUREMENT in affects(SECTIONS, name)
    }
