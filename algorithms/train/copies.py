"""Copies of a run on object storage: `run.copy_to`, and `--resume URI` on another machine.

```
COPY_TO/NAME/
  copy.json                        id and step of the copy; of each file its place here, its size and its digest
  checkpoints/step_000040-1f0c…/   a checkpoint, under its manifest's digest
  record/ID/                       config.yaml, metrics.jsonl, history.sqlite, …, as they were at that copy
```

No file of a copy that stands is written again, copy.json is written last, and only then is what it does not list
deleted: however a copy ends, the one before it stands whole.

A run's folder knows the ids of the copies that it wrote or was fetched from. Where a copy with another id stands, of
another run or of this one continued on another machine, nothing is written.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.fs

from algorithms.config.errors import ConfigError, ServiceError
from algorithms.config.files import read_sections
from algorithms.config.sections import RunSettings
from algorithms.history.database import copy_database
from algorithms.train.manifest import GROWING, MANIFEST, WHOLE, fingerprint, listed_files
from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, checkpoint_path, checkpoint_steps
from algorithms.utils.errors import CheckpointError, is_disk_full
from algorithms.utils.files import make_folder, sync, sync_name

LAST_TRY_S = 1800.0
_INDEX, _RECORD = "copy.json", "record"
_IDS = ".copies"  # in the run's folder: the ids that it knows, one a line
_STAGE = ".copying"
_BLOCK = 1 << 22

_logger = logging.getLogger(__name__)


class Place:
    """Where the copy of a run lies.

    Args:
        folder: URI of the folder that it lies in, `s3://bucket/runs`.
        name: of the run.
        setting: what errors name: the setting or flag that the URI is from.

    Raises:
        ConfigError: pyarrow cannot read the URI, or it holds credentials.
        ServiceError: the storage cannot be reached.
    """

    def __init__(self, folder: str, name: str, setting: str = "run.copy_to") -> None:
        location, mark, query = folder.partition("?")
        if "@" in location.partition("://")[2].partition("/")[0]:
            raise ConfigError(f"{setting}: names credentials, which files would hold; fix: AWS_ACCESS_KEY_ID and so on")
        self.uri, self._setting = f"{location.rstrip('/')}/{name}{mark}{query}", setting
        try:
            self._files, root = pyarrow.fs.FileSystem.from_uri(folder)
            if not root.strip("/"):
                raise ValueError("it names no bucket or folder")
        except (ValueError, NotImplementedError, OSError) as error:
            raise self._unusable(error) from error
        self._root = f"{root.rstrip('/')}/{name}"
        self._is_local = isinstance(self._files, pyarrow.fs.LocalFileSystem)

    def standing(self) -> dict[str, Any] | None:
        """Return the copy.json of the copy that stands there, None without one; raises as the class does."""
        try:
            with self._files.open_input_stream(f"{self._root}/{_INDEX}") as file:
                index = json.loads(file.read())
            return {"id": str(index["id"]), "step": int(index["step"]), "files": dict(index["files"])}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unusable(error) from error

    def check(self, run: Path) -> set[str]:
        """Check that a run's folder knows the copy that stands there; return where that one's files lie.

        Raises:
            ConfigError: it does not, or as the class does.
        """
        standing = self.standing()
        if standing and standing["id"] not in _known(run):
            raise ConfigError(
                f"{self._setting}: {self.uri} is a copy of another run, or of this one as another machine continued "
                f"it; fix: --resume {self.uri} with a run.dir that has no {run.name}, or another run.copy_to"
            )
        return {entry["key"] for entry in standing["files"].values()} if standing else set()

    def put(self, source: Path, key: str, sha256: object) -> None:
        """Write a file; raises ValueError if it is not the one with that digest."""
        target, digest = f"{self._root}/{key}", hashlib.sha256()
        if self._is_local:  # elsewhere a folder is a file's prefix
            self._files.create_dir(str(PurePosixPath(target).parent))
        with source.open("rb") as file, self._files.open_output_stream(target) as copy:
            while block := file.read(_BLOCK):
                digest.update(block)
                copy.write(block)
        if digest.hexdigest() != sha256:
            raise ValueError(f"{source.name} has changed since it was written")

    def get(self, entry: Mapping[str, Any], target: Path) -> None:
        """Read a file that copy.json lists; raises ValueError if it is damaged."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._files.open_input_stream(f"{self._root}/{entry['key']}") as copy, target.open("wb") as file:
            shutil.copyfileobj(copy, file, _BLOCK)
        sync(target)
        if fingerprint(target)["sha256"] != entry["sha256"]:
            raise ValueError(f"{entry['key']} is damaged")

    def publish(self, index: Mapping[str, Any], file: Path, keys: set[str]) -> None:
        """Let a copy stand whose files are there, by way of a local file; of `keys`, delete what it does not list."""
        file.write_text(json.dumps(index), encoding="utf-8")
        self.put(file, f".{_INDEX}" if self._is_local else _INDEX, fingerprint(file)["sha256"])
        if self._is_local:  # elsewhere a file is written whole or not at all
            self._files.move(f"{self._root}/.{_INDEX}", f"{self._root}/{_INDEX}")
        for folder in sorted(_folders(keys) - _folders({entry["key"] for entry in index["files"].values()})):
            with contextlib.suppress(FileNotFoundError):
                self._files.delete_dir(f"{self._root}/{folder}")

    def _unusable(self, error: Exception) -> ConfigError:
        kind = ServiceError if isinstance(error, OSError) else ConfigError
        fix = "a URI such as s3://bucket/runs, with credentials, and AWS_ENDPOINT_URL if any, in the environment"
        return kind(f"{self._setting}: {self.uri} cannot be used ({error}); fix: {fix}")


def _folders(keys: set[str]) -> set[str]:
    """Return the folders of a copy's parts: a checkpoint's, a record's."""
    return {"/".join(key.split("/")[:2]) for key in keys}


def check_copy(run: RunSettings, directory: RunDirectory, *, begun: bool) -> None:
    """Check that a run may be copied to `run.copy_to`; one that has begun goes on without its storage.

    Raises:
        ConfigError: a copy stands there that is not the run's, or the place cannot be used.
    """
    try:
        if run.copy_to is not None:
            Place(run.copy_to, directory.name).check(directory.path)
    except ServiceError:
        if not begun:
            raise


def fetch(uri: str, parent: Path) -> Path:
    """Return the folder of the run that was copied to `uri`: the one in `parent` if it knows the copy, else the copy.

    Raises:
        ConfigError: the storage cannot be used, or the copy cannot be fetched.
        CheckpointError: no copy is there, or a folder of its name is of another run, or behind.
    """
    location, mark, query = uri.partition("?")
    above, _, name = location.rstrip("/").rpartition("/")
    place = Place(f"{above}{mark}{query}", name, "--resume")
    index = place.standing()
    if index is None:
        raise CheckpointError(f"--resume: {uri} holds no copy of a run; fix: run.copy_to and the run's name behind it")
    folder = parent / name
    if os.path.lexists(folder):
        if index["id"] in _known(folder):
            return folder
        raise CheckpointError(
            f"--resume: {folder} is another run than {uri}, or lacks what another machine added to it; fix: run.dir=… "
            f"without a {name}, to fetch it, or --resume {folder} run.copy_to=…, to continue the folder"
        )
    print(f"fetching {uri} to {folder}", file=sys.stderr)
    make_folder(parent)
    partial = RunDirectory(Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".fetched", dir=parent)))
    try:
        for made in (partial.rollouts_folder, partial.checkpoints_folder):
            made.mkdir(0o700)
        for file, entry in index["files"].items():
            if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
                raise ValueError(f"{file} is in no run")
            place.get(entry, partial.path / file)
        (partial.path / _IDS).write_text(f"{index['id']}\n", encoding="utf-8")
        settings = read_sections(partial.config_file).get("run") or {}
        partial.path.chmod(int(str(settings.get("mode", "0700")), 8))
        partial.path.rename(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if is_disk_full(error):
            raise
        raise ServiceError(f"--resume: {uri} cannot be fetched ({error}); fix: again, or a whole copy of it") from error
    finally:
        shutil.rmtree(partial.path, ignore_errors=True)
    sync_name(folder)
    return folder


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
        self._there: set[str] = set()  # what was written, and is in no copy yet, or to be deleted
        self._trouble: object = None
        self._sending = threading.Lock()
        self._thread = threading.Thread()
        shutil.rmtree(self._stage, ignore_errors=True)

    def take(self) -> None:
        """Take the files as they are and begin to copy them. Call it between steps."""
        if self._copy_to is None:
            return
        self._newest += 1
        for older in self._stage.glob("[0-9]*"):  # which holds files that the run deletes
            if older.name != str(self._current):
                shutil.rmtree(older, ignore_errors=True)
        partial = self._stage / "partial"
        try:
            _stage(self._directory, partial)
            partial.rename(self._stage / str(self._newest))
        except (OSError, sqlite3.Error) as error:  # a full disk: the run finds it, or goes on
            shutil.rmtree(partial, ignore_errors=True)
            self._warn(error)
        else:
            self._start()

    def finish(self) -> None:
        """Wait until what was taken last is copied, with one more try if that failed; `LAST_TRY_S` at most."""
        ends = time.monotonic() + LAST_TRY_S
        if self._newest > self._copied:
            print(f"copying to {self._copy_to}, for {LAST_TRY_S / 60:.0f} minutes at most", file=sys.stderr)
            self._join(ends)
            if (self._stage / str(self._newest)).exists() and not self._thread.is_alive():
                self._start()
                self._join(ends)
        if self._newest == self._copied:
            shutil.rmtree(self._stage, ignore_errors=True)
        else:
            _logger.warning(
                "run.copy_to: %s lacks what %s holds since its last copy (%s); fix: --resume %s, which copies it",
                self._copy_to,
                self._directory.path,
                self._trouble or "the time was too short",
                self._directory.path,
            )

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._send, args=(self._newest,), name="copies", daemon=True)
        self._thread.start()

    def _join(self, ends: float) -> None:
        if self._thread.is_alive():
            self._thread.join(max(0.0, ends - time.monotonic()))

    def _send(self, number: int) -> None:
        with self._sending:
            self._current = number
            if number == self._newest:
                try:
                    self._copy(self._stage / str(number))
                except Exception as error:  # a client's, of any type: the run is more than its copy
                    self._warn(error)
                else:
                    self._copied, self._there, self._trouble = number, set(), None
                    shutil.rmtree(self._stage / str(number), ignore_errors=True)
            self._current = 0

    def _copy(self, staged: Path) -> None:
        assert self._copy_to is not None
        run, copy_id = self._directory.path, uuid.uuid4().hex
        place = Place(self._copy_to, run.name)
        self._there |= place.check(run)
        files = _listed(staged, copy_id)
        for name, entry in files.items():
            if entry["key"] not in self._there:
                place.put(staged / name, entry["key"], entry["sha256"])
                self._there.add(entry["key"])
        place.check(run)  # again: that may have taken hours
        with (run / _IDS).open("a", encoding="utf-8") as ids:
            print(copy_id, file=ids)
        sync(run / _IDS)  # before the copy stands: a process that ends in between knows it
        step = max(checkpoint_steps(staged / CHECKPOINTS), default=0)
        place.publish({"id": copy_id, "step": step, "files": files}, staged / _INDEX, self._there)

    def _warn(self, error: Exception) -> None:
        if self._trouble is None:
            _logger.warning(
                "run.copy_to: %s: no copy (%s); the run goes on, and the next checkpoint tries again",
                self._copy_to,
                error,
            )
        self._trouble = error


def _known(run: Path) -> set[str]:
    file = run / _IDS
    return set(file.read_text(encoding="utf-8").split()) if file.is_file() else set()


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
        manifest = fingerprint(folder / MANIFEST)
        for name, entry in {**listed_files(folder), MANIFEST: manifest}.items():
            key = f"{CHECKPOINTS}/{folder.name}-{str(manifest['sha256'])[:16]}/{name}"
            files[f"{CHECKPOINTS}/{folder.name}/{name}"] = {"key": key, **entry}
    return files
