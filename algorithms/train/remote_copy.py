"""The place of a run's copy on object storage, whose copy may be written there, and how another machine fetches it.

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
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.fs

from algorithms.config.errors import ConfigError, ServiceError
from algorithms.config.files import read_sections
from algorithms.config.sections import RunSettings
from algorithms.train.manifest import fingerprint
from algorithms.train.run_directory import RunDirectory
from algorithms.train.run_location import unusable
from algorithms.utils.errors import CheckpointError, is_disk_full
from algorithms.utils.files import make_folder, sync, sync_name
from r3env.printable import printable

INDEX = "copy.json"
IDS = ".copies"  # in the run's folder: the ids that it knows, one a line
_LEFT_S = 24 * 3600.0
_BLOCK = 1 << 22


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
        """Return the copy.json of the copy that stands there, None without one; raises as the class does.

        Raises:
            CheckpointError: it is damaged.
        """
        try:
            with self._files.open_input_stream(f"{self._root}/{INDEX}") as file:
                index = json.loads(file.read())
            files = {str(name): {**entry, "key": str(entry["key"])} for name, entry in dict(index["files"]).items()}
            return {"id": str(index["id"]), "step": int(index["step"]), "files": files}
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CheckpointError(
                f"{self._setting}: {self.uri}/{INDEX} is no list of a copy's files ({error}); fix: put back a whole "
                "copy of it, or delete it, and the next copy is a new one"
            ) from error

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
        return {folder_of(entry["key"]) for entry in standing["files"].values()} if standing else set()

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
        path = f"{self._root}/.{INDEX}"
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
        self.put(file, f".{INDEX}" if self._has_folders else INDEX, fingerprint(file)["sha256"])
        if self._has_folders:  # elsewhere a file is written whole or not at all
            self._files.move(f"{self._root}/.{INDEX}", f"{self._root}/{INDEX}")

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


def folder_of(key: str) -> str:
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
    print(printable(f"fetching {uri} to {folder}"), file=sys.stderr)
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
        (partial.path / IDS).write_text(f"{index['id']}\n", encoding="utf-8")
        settings = read_sections(partial.config_file).get("run") or {}
        partial.path.chmod(int(str(settings.get("mode", "0700")), 8) & 0o7777)
        partial.path.rename(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if is_disk_full(error):
            raise
        raise ServiceError(f"--resume: {uri} cannot be fetched ({error}); fix: again, or a whole copy of it") from error
    finally:
        shutil.rmtree(partial.path, ignore_errors=True)
    sync_name(folder)
    return folder


def _known(run: Path) -> set[str]:
    file = run / IDS
    try:
        return set(file.read_text(encoding="utf-8", errors="replace").split()) if file.is_file() else set()
    except OSError as error:
        raise unusable(file, error.strerror) from error
