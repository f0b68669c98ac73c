"""The folder of a training run: `runs/NAME/`."""

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from algorithms.config.errors import ConfigError
from algorithms.history.store import FILE_NAME
from algorithms.train import manifest, metrics_file
from algorithms.train.run_location import check_place, no_place, unusable
from algorithms.utils.errors import CheckpointError, is_disk_full
from algorithms.utils.files import json_text, make_folder, plain, sync_name, write_text

CHECKPOINTS = "checkpoints"
SIDES = ("before", "after")
_ABANDONED_S = 3600.0  # a folder that is being made is there for milliseconds
# What a file system answers that knows no locks; a network's own, without their service, among them.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


class RunDirectory:
    """Names and writes the files of one run.

    ```
    config.yaml      resolved configuration; its presence marks the folder as a run
    manifest.json    sizes and digests of the files of record
    metrics.jsonl    one object a step
    rollouts/        step-000001.parquet, …
    checkpoints/     step_000040/, …
    history.sqlite   past rollouts, for replay and reflection
    .lock            held by the process that trains here
    evaluation.json  summary.json  curves.png  and TensorBoard's event files
    trackers.json    conversations.jsonl: with other trackers, their runs, and the conversations sent to them
    ```

    Make one with `create` or `open`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name if path.name in ("", "..") else path.name
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.conversations_file = path / "conversations.jsonl"
        self.rollouts_folder = path / "rollouts"
        self.checkpoints_folder = path / CHECKPOINTS
        self.evaluation_file = path / "evaluation.json"
        self.history_file = path / FILE_NAME
        self.summary_file = path / "summary.json"
        self.curves_file = path / "curves.png"
        self._last_step: int | None = None
        self._hashed: manifest.Hashed = {}

    @classmethod
    def create(
        cls, parent: str | Path, name: str, config_yaml: str, mode: str = "0700", *, numbered: bool = True
    ) -> "RunDirectory":
        """Make a new folder for a run; a name already taken gets `-2`, `-3`, …; nothing is overwritten.

        Args:
            parent: where runs lie; made when missing; `~` is the user's home.
            name: the run's name, one path component.
            config_yaml: text of the resolved configuration.
            mode: of the folder, in octal.
            numbered: whether another name will do where this one is taken.

        Raises:
            ConfigError: the name is no single path component, or is taken, or the parent can't hold folders.
            OSError: the disk is full.
        """
        check_place(parent, name)
        try:
            return cls(_new_folder(Path(parent).expanduser(), name, config_yaml, int(mode, 8), numbered))
        except ConfigError:
            raise
        except (OSError, RuntimeError, ValueError) as error:  # a home that nobody has, a null byte
            if is_disk_full(error):  # which is another folder's fault no less
                raise
            raise no_place(parent, getattr(error, "strerror", None) or error) from error

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Open the folder of an earlier run. Reads nothing and changes nothing yet.

        Raises:
            ValueError: there is no such folder, or it is not a run.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such run folder")
        if not (folder / "config.yaml").is_file():
            raise ValueError(f"{folder}: not a run directory: it has no config.yaml")
        return cls(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here until the block, or this process, has ended.

        On a file system that knows no locks nothing is locked.

        Raises:
            CheckpointError: another process trains here; the message names it.
        """
        file = self.path / ".lock"
        lock = FileLock(file, blocking=False, fallback_to_soft=False)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(lock)
            except Timeout as error:
                holder = file.read_text(encoding="utf-8", errors="replace").strip() or "another process"
                raise CheckpointError(
                    f"{self.path}: {holder} trains here; fix: end it, or wait until it ends"
                ) from error
            except OSError as error:
                if is_disk_full(error):
                    raise
                if error.errno not in _NO_LOCKS:  # read-only, a link, a folder
                    raise unusable(file, error.strerror) from error
            else:
                file.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
            yield

    def written_paths(self) -> list[Path]:
        """List the folders and files that a resume writes."""
        folders = [self.path, self.checkpoints_folder, self.rollouts_folder]
        rows = [self.metrics_file, self.conversations_file]
        return [*folders, *rows, self.config_file, self.evaluation_file, self.history_file]

    def delete_leftovers(self) -> None:
        """Delete temporary files that a killed process left. Call it where the run is locked."""
        for folder in (self.path, self.rollouts_folder):
            for rest in folder.glob(".*.tmp"):
                rest.unlink()

    def write_config(self, config_yaml: str) -> None:
        """Write config.yaml, in place of the present one."""
        self.write_record(self.config_file, config_yaml)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a step's row to metrics.jsonl.

        Args:
            row: flat tag → number (or text); `step` counts from 1. NaN and infinities are stored as null.

        Raises:
            ValueError: `step` is missing, or not above the last step that is stored.
        """
        if self._last_step is None:
            # A run killed in mid-write left half a line, which would swallow this one.
            metrics_file.drop_torn_line(self.metrics_file)
            stored = self.read_metrics()
            self._last_step = stored[-1]["step"] if stored else 0
        step = plain(row.get("step"))
        if not isinstance(step, int) or step <= self._last_step:
            raise ValueError(f"{self.metrics_file}: step {step!r} can't follow step {self._last_step}")
        metrics_file.append(self.metrics_file, row)
        self._last_step = step

    def add_to_last_metrics(self, values: Mapping[str, Any]) -> None:
        """Add values to the last row of metrics.jsonl, of a run that resumes after that step."""
        text = metrics_file.with_last_changed(self.metrics_file, values)
        self._hashed.pop(self.metrics_file.name, None)
        with manifest.rewriting_end(self.path, self.metrics_file.name, text.encode()):
            write_text(self.metrics_file, text)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the stored rows in order, without a torn last line; empty before the first step."""
        return metrics_file.read(self.metrics_file)

    def truncate_after(self, step: int) -> int:
        """Delete metrics, conversations and rollouts of the steps after `step`, which a resumed run repeats.

        Returns:
            How many rows of metrics were deleted.
        """
        self.delete_leftovers()
        manifest.forget_after(self.path, step)
        self._hashed.clear()
        dropped = metrics_file.keep_until(self.metrics_file, step)
        metrics_file.keep_until(self.conversations_file, step)
        for file in self.rollouts_folder.glob("step-*.parquet"):
            if int(file.stem.removeprefix("step-")) > step:
                file.unlink()
        self._last_step = None
        return dropped

    def rollout_file(self, step: int) -> Path:
        """Return the path of a step's rollouts, written or not."""
        return self.rollouts_folder / f"step-{step:06d}.parquet"

    def write_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Write evaluation.json, in place of an earlier one."""
        self.write_record(self.evaluation_file, json_text(evaluation))

    def read_evaluation(self) -> dict[str, Any]:
        """Return the content of evaluation.json; empty if there is none.

        Raises:
            ValueError: it is damaged.
        """
        if not self.evaluation_file.exists():
            return {}
        try:
            stored = json.loads(self.evaluation_file.read_bytes())
        except (ValueError, RecursionError):
            stored = None
        if not isinstance(stored, dict) or not all(isinstance(stored.get(side, {}), dict) for side in SIDES):
            raise ValueError(f"{self.evaluation_file}: not a JSON object of evaluations")
        return stored

    def delete_results(self) -> None:
        """Delete summary.json and curves.png of a run that continues; evaluation.json stays."""
        self.curves_file.unlink(missing_ok=True)
        with manifest.replacing(self.path, self.summary_file.name, None):
            self.summary_file.unlink(missing_ok=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, in place of an earlier one."""
        self.write_record(self.summary_file, json_text(summary))

    def commit(self, step: int) -> None:
        """Note what the files of rows hold at a step, before its checkpoint gets its name."""
        manifest.commit(self.path, step, checkpoint_steps(self.checkpoints_folder), self._hashed)

    def write_record(self, file: Path, text: str) -> None:
        """Write a small file that the manifest lists, in place of the present one."""
        with manifest.replacing(self.path, file.name, text.encode()):
            write_text(file, text)


def run_of(path: Path) -> Path:
    """Return the run directory that `path` names: itself, or that of one of its checkpoints."""
    return path.parents[1] if path.parent.name == CHECKPOINTS else path


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step is in a run's `checkpoints` folder."""
    return folder / f"step_{step:06d}"


def step_of(checkpoint: Path) -> int | None:
    """Return the step that a checkpoint's name says; None for another name."""
    match = re.fullmatch(r"step_(\d{6,})", checkpoint.name)
    return int(match[1]) if match else None


def checkpoint_steps(folder: Path) -> list[int]:
    """List the steps of the complete checkpoints in a run's `checkpoints` folder, ascending, damaged ones included."""
    return sorted(step for path in folder.glob("step_*") if (step := step_of(path)) is not None)


def next_folder(parent: str | Path, name: str) -> Path:
    """Return the folder that `RunDirectory.create` would make now."""
    names = _names(Path(parent).expanduser() / name, numbered=True)
    return next(path for path in names if not os.path.lexists(path))


def _names(first: Path, numbered: bool) -> Iterator[Path]:
    yield first
    if numbered:
        yield from (first.with_name(f"{first.name}-{number}") for number in count(2))


def _new_folder(parent: Path, name: str, config_yaml: str, mode: int, numbered: bool) -> Path:
    """Make a run's folder under that name, or the first one with a number that is free: whole, and on the disk.

    A folder without config.yaml would be no run, and would still take the name that `--continue` knows the run by.
    """
    make_folder(parent)
    _delete_abandoned(parent)
    temporary = RunDirectory(parent / f".{uuid.uuid4().hex[:12]}.tmp")
    try:
        for folder in (temporary.path, temporary.rollouts_folder, temporary.checkpoints_folder):
            folder.mkdir(0o700)
        temporary.path.chmod(mode)
        temporary.write_config(config_yaml)
        path = _renamed(temporary.path, _names(parent / name, numbered))
    except BaseException:
        shutil.rmtree(temporary.path, ignore_errors=True)
        raise
    sync_name(path)
    return path


def _delete_abandoned(parent: Path) -> None:
    """Delete folders that a process which was killed was about to make a run of."""
    for rest in parent.glob(".*.tmp"):
        with contextlib.suppress(OSError):  # somebody else's, or gone
            if re.fullmatch(r"\.[0-9a-f]{12}\.tmp", rest.name) and time.time() - rest.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(rest)


def _renamed(folder: Path, names: Iterable[Path]) -> Path:
    """Rename a folder to the first name that is free; raises ConfigError if none is."""
    for path in names:
        if os.path.lexists(path):
            continue
        try:
            return folder.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # somebody else was faster
                raise
    raise ConfigError(
        f"run.name: {path} is no run that can be resumed, or another process has just begun it; fix: the same command "
        "again, which resumes a run, or another run.name"
    )


def is_in_job_copy(path: Path) -> bool:
    """Return whether a folder is in the copy of a working directory that Ray makes for a job, and deletes after it."""
    return any(part.startswith("_ray_pkg_") for part in path.resolve().parts)
