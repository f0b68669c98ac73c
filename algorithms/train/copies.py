"""Copy a run to object storage beside training: `run.copy_to`; `remote_copy` has what lies there."""

import logging
import os
import shutil
import sqlite3
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from algorithms.history.database import copy_database
from algorithms.train.manifest import GROWING, MANIFEST, WHOLE, fingerprint, listed_files
from algorithms.train.remote_copy import IDS, INDEX, DamagedError, Place, folder_of
from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, checkpoint_path, checkpoint_steps
from algorithms.utils.files import sync
from r3env.printable import printable

LAST_TRY_S = 1800.0
_RECORD = "record"
_STAGE = ".copying"

_logger = logging.getLogger(__name__)


class Copies:
    """Copies a run to `run.copy_to` in the background, or does nothing without it.

    Args:
        directory: of the run.
        copy_to: the URI; None: no copies.
    """

    def __init__(self, directory: RunDirectory, copy_to: str | None) -> None:
        self._directory, self._copy_to = directory, copy_to
        self._stage = directory.path / _STAGE
        self._newest = self._copied = self._current = 0  # numbers of what was taken; `_current`: being copied now
        self._folders: set[str] = set()  # folders that a copy was in, or was to be, and may have to go
        self._trouble: object = None
        self._left = False  # whether it was said that something cannot be deleted
        self._choosing, self._thread = threading.Lock(), threading.Thread()
        shutil.rmtree(self._stage, ignore_errors=True)

    def take(self) -> None:
        """Take the files as they are and begin to copy them. Call it between steps."""
        if self._copy_to is None:
            return
        number, partial = self._newest + 1, self._stage / "partial"
        try:
            _stage(self._directory, partial)
            partial.rename(self._stage / str(number))
            with self._choosing:
                self._newest = number
                for older in self._stage.glob("[0-9]*"):  # which holds files that the run deletes
                    if older.name not in (str(number), str(self._current)):
                        shutil.rmtree(older, ignore_errors=True)
            self._start()
        except (OSError, sqlite3.Error, RuntimeError) as error:  # a full disk, no thread: the run finds it, or goes on
            shutil.rmtree(partial, ignore_errors=True)
            self._newest = number
            self._warn(error)

    def finish(self) -> None:
        """Wait until what was taken last is copied, with one more try if that failed; `LAST_TRY_S` at most."""
        ends = time.monotonic() + LAST_TRY_S
        if self._newest > self._copied:
            print(printable(f"copying to {self._copy_to}, for {LAST_TRY_S / 60:.0f} minutes at most"), file=sys.stderr)
            self._join(ends)
            if (self._stage / str(self._newest)).exists() and not self._thread.is_alive():
                self._start()
                self._join(ends)
        if not self._thread.is_alive():
            shutil.rmtree(self._stage, ignore_errors=True)
        if self._newest != self._copied:
            _logger.warning(
                "run.copy_to: %s lacks what %s holds since its last copy (%s); fix: --resume %s, which copies it",
                self._copy_to,
                self._directory.path,
                self._trouble or "the time was too short",
                self._directory.path,
            )

    def _start(self) -> None:
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._send, name="copies", daemon=True)
            self._thread.start()

    def _join(self, ends: float) -> None:
        if self._thread.is_alive():
            self._thread.join(max(0.0, ends - time.monotonic()))

    def _send(self) -> None:
        number = 0
        while number != self._newest:
            with self._choosing:
                number = self._current = self._newest
            try:
                self._copy(self._stage / str(number))
            except Exception as error:  # a client's, of any type: the run is more than its copy
                self._warn(error)
            else:
                self._copied, self._trouble = number, None
                shutil.rmtree(self._stage / str(number), ignore_errors=True)
            self._current = 0

    def _copy(self, staged: Path) -> None:
        assert self._copy_to is not None
        run, copy_id = self._directory.path, uuid.uuid4().hex
        place = Place(self._copy_to, run.name)
        self._folders |= place.check(run)
        files = _listed(staged, copy_id)
        there = place.present(files.values())
        for name, entry in list(files.items()):
            if name not in files or entry["key"] in there:
                continue
            self._folders.add(folder_of(entry["key"]))
            try:
                place.put(staged / name, entry["key"], entry["sha256"])
            except DamagedError as error:
                _logger.warning("run.copy_to: %s: it is left out", error)
                files = {other: one for other, one in files.items() if folder_of(one["key"]) != folder_of(entry["key"])}
        place.check(run)  # again: that may have taken hours
        with (run / IDS).open("a", encoding="utf-8") as ids:
            print(copy_id, file=ids)
        sync(run / IDS)  # before the copy stands: a process that ends in between knows it
        names = {name.split("/")[1] for name in files if name.startswith(f"{CHECKPOINTS}/")}
        step = max((int(name.removeprefix("step_")) for name in names), default=0)
        place.publish({"id": copy_id, "step": step, "files": files}, self._stage / INDEX)
        self._folders = place.delete(self._folders - {folder_of(entry["key"]) for entry in files.values()})
        if self._folders and not self._left:
            self._left = True
            _logger.warning("run.copy_to: %s: what the run has deleted stays there, as it cannot be deleted", place.uri)

    def _warn(self, error: Exception) -> None:
        if self._trouble is None:
            _logger.warning(
                "run.copy_to: %s: no copy (%s); the run goes on, and the next checkpoint tries again",
                self._copy_to,
                error,
            )
        self._trouble = error


def _stage(directory: RunDirectory, stage: Path) -> None:
    """Keep a run's files as they are: those of checkpoints under a second name, the others as copies."""
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    for name in (*WHOLE, *GROWING, MANIFEST):
        if (directory.path / name).exists():
            shutil.copyfile(directory.path / name, stage / name)
    if directory.history_file.exists():
        copy_database(directory.history_file, stage / directory.history_file.name)
    for step in checkpoint_steps(directory.checkpoints_folder):
        checkpoint = checkpoint_path(directory.checkpoints_folder, step)
        shutil.copytree(checkpoint, stage / CHECKPOINTS / checkpoint.name, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _listed(stage: Path, copy_id: str) -> dict[str, dict[str, Any]]:
    """Return the staged files by their names in the run: where each goes, and what it is."""
    record = [file for file in stage.iterdir() if file.is_file()]
    files = {file.name: {"key": f"{_RECORD}/{copy_id}/{file.name}", **fingerprint(file)} for file in record}
    for step in checkpoint_steps(stage / CHECKPOINTS):
        folder = checkpoint_path(stage / CHECKPOINTS, step)
        try:
            manifest, own = fingerprint(folder / MANIFEST), listed_files(folder)
        except (OSError, ValueError):  # damaged: a resume passes it over as well
            continue
        for name, entry in {**own, MANIFEST: manifest}.items():
            key = f"{CHECKPOINTS}/{folder.name}-{str(manifest['sha256'])[:16]}/{name}"
            files[f"{CHECKPOINTS}/{folder.name}/{name}"] = {"key": key, **entry}
    return files
