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
from collections.abc import Collection, Mapping
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
_LEFT_S = 24 * 3600.0
_INDEX, _RECORD = "copy.json", "record"
_IDS = ".copies"  # in the run's folder: the ids that it knows, one a line
_STAGE = ".copying"
_BLOCK = 1 << 22

_logger = logging.getLogger(__name__)


class DamagedError(ValueError):
    """A file is not the one that its checkpoint's manifest lists."""


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
        user, _, _ = location.partition("://")[2].partition("/")[0].rpartition("@")
        if ":" in user or "secret" in query:
            raise ConfigError(f"{setting}: names credentials, which files would hold; fix: AWS_ACCESS_KEY_ID and so on")
        self.uri, self._setting = f"{location.rstrip('/')}/{name}{mark}{query}", setting
        try:
            self._files, root = pyarrow.fs.FileSystem.from_uri(folder)
            if not root.strip("/"):
                raise ValueError("it names no bucket or folder")
        except (ValueError, NotImplementedError, OSError) as error:
            raise self._unusable(error) from error
        self._root = f"{root.rstrip('/')}/{name}"
        self._has_folders = self._files.type_name not in ("s3", "gcs", "abfs")

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
        """Check that a run's folder knows the copy that stands there; return the folders of that one's files.

        Raises:
            ConfigError: it does not, or as the class does.
        """
        standing = self.standing()
        if standing and standing["id"] not in _known(run):
            raise ConfigError(
                f"{self._setting}: {self.uri} is a copy of another run, or of this one as another machine continued "
                f"it; fix: --resume {self.uri} with a run.dir that has no {run.name}, or another run.copy_to"
            )
        return {_folder(entry["key"]) for entry in standing["files"].values()} if standing else set()

    def put(self, source: Path, key: str, sha256: object) -> None:
        """Write a file; raises `DamagedError` if it is not the one with that digest."""
        if fingerprint(source)["sha256"] != sha256:
            raise DamagedError(f"{source.name} has changed since it was written")
        target = f"{self._root}/{key}"
        if self._has_folders:
            self._files.create_dir(str(PurePosixPath(target).parent))
        with source.open("rb") as file, self._files.open_output_stream(target) as copy:
            shutil.copyfileobj(file, copy, _BLOCK)

    def present(self, entries: Collection[Mapping[str, Any]]) -> set[str]:
        """Return which of these files are there, by their size: others may have been deleted by hand or by age."""
        found = self._files.get_file_info([f"{self._root}/{entry['key']}" for entry in entries])
        return {entry["key"] for entry, info in zip(entries, found, strict=True) if info.size == entry["bytes"]}

    def try_out(self) -> None:
        """Write a file and delete it; raises as the class does."""
        path = f"{self._root}/.{_INDEX}"
        try:
            if self._has_folders:
                self._files.create_dir(self._root)
            with self._files.open_output_stream(path) as file:
                file.write(b"{}")
            self._files.delete_file(path)
        except OSError as error:
            raise self._unusable(error) from error

    def get(self, entry: Mapping[str, Any], target: Path) -> None:
        """Read a file that copy.json lists; raises ValueError if it is damaged."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._files.open_input_stream(f"{self._root}/{entry['key']}") as copy, target.open("wb") as file:
            shutil.copyfileobj(copy, file, _BLOCK)
        sync(target)
        if fingerprint(target)["sha256"] != entry["sha256"]:
            raise ValueError(f"{entry['key']} is damaged")

    def publish(self, index: Mapping[str, Any], file: Path) -> None:
        """Let a copy stand whose files are there, by way of a local file."""
        file.write_text(json.dumps(index), encoding="utf-8")
        self.put(file, f".{_INDEX}" if self._has_folders else _INDEX, fingerprint(file)["sha256"])
        if self._has_folders:  # elsewhere a file is written whole or not at all
            self._files.move(f"{self._root}/.{_INDEX}", f"{self._root}/{_INDEX}")

    def delete(self, folders: Collection[str]) -> set[str]:
        """Delete folders of parts; return those that cannot be."""
        left = set()
        for folder in sorted(folders):
            try:
                self._files.delete_dir(f"{self._root}/{folder}")
            except FileNotFoundError:
                pass
            except OSError:
                left.add(folder)
        return left

    def _unusable(self, error: Exception) -> ConfigError:
        kind = ServiceError if isinstance(error, OSError) else ConfigError
        fix = "a URI such as s3://bucket/runs, with credentials, and AWS_ENDPOINT_URL if any, in the environment"
        return kind(f"{self._setting}: {self.uri} cannot be used ({error}); fix: {fix}")


def _folder(key: str) -> str:
    """Return the folder of a copy's part: a checkpoint's, a record's."""
    return "/".join(key.split("/")[:2])


def check_copy(run: RunSettings, directory: RunDirectory, *, begun: bool) -> None:
    """Check that a run may be copied to `run.copy_to`; one that has begun goes on without its storage.

    Raises:
        ConfigError: a copy stands there that is not the run's, or the place cannot be used.
    """
    try:
        if run.copy_to is not None:
            place = Place(run.copy_to, directory.name)
            place.check(directory.path)
            place.try_out()
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
    for left in parent.glob(f".{name}.*.fetched"):  # of a process that was killed
        if time.time() - left.stat().st_mtime > _LEFT_S:
            shutil.rmtree(left, ignore_errors=True)
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
            print(f"copying to {self._copy_to}, for {LAST_TRY_S / 60:.0f} minutes at most", file=sys.stderr)
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
            self._folders.add(_folder(entry["key"]))
            try:
                place.put(staged / name, entry["key"], entry["sha256"])
            except DamagedError as error:
                _logger.warning("run.copy_to: %s: it is left out", error)
                files = {other: one for other, one in files.items() if _folder(one["key"]) != _folder(entry["key"])}
        place.check(run)  # again: that may have taken hours
        with (run / _IDS).open("a", encoding="utf-8") as ids:
            print(copy_id, file=ids)
        sync(run / _IDS)  # before the copy stands: a process that ends in between knows it
        names = {name.split("/")[1] for name in files if name.startswith(f"{CHECKPOINTS}/")}
        step = max((int(name.removeprefix("step_")) for name in names), default=0)
        place.publish({"id": copy_id, "step": step, "files": files}, self._stage / _INDEX)
        self._folders = place.delete(self._folders - {_folder(entry["key"]) for entry in files.values()})
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
        try:
            manifest, own = fingerprint(folder / MANIFEST), listed_files(folder)
        except (OSError, ValueError):  # damaged: a resume passes it over as well
            continue
        for name, entry in {**own, MANIFEST: manifest}.items():
            key = f"{CHECKPOINTS}/{folder.name}-{str(manifest['sha256'])[:16]}/{name}"
            files[f"{CHECKPOINTS}/{folder.name}/{name}"] = {"key": key, **entry}
    return files
