"""Runs on object storage: `run.dir: s3://bucket/runs`, or another URI that pyarrow reads, as Ray does.

In the storage a run has the files of its directory under the same names. Only the history has another: it is kept with
the step that it fits, `history/step_000040.sqlite`. A checkpoint without its manifest is not whole yet.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import pyarrow.fs

from algorithms.config.errors import ConfigError, ServiceError
from algorithms.config.files import read_sections
from algorithms.train.manifest import MANIFEST
from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, checkpoint_steps
from algorithms.utils.errors import CheckpointError

HISTORY = "history"

_logger = logging.getLogger(__name__)


def is_uri(place: str) -> bool:
    """Return whether a place is a URI, and no folder."""
    return re.match(r"[a-z][a-z0-9+.-]*://", place) is not None


class Storage:
    """A place of runs.

    Args:
        uri: `s3://bucket/runs`; `s3://bucket/runs?endpoint_override=http://host:9000` names another server than AWS.

    Raises:
        ConfigError: pyarrow cannot read it, or it holds credentials.
        ServiceError: the storage cannot be reached.
    """

    def __init__(self, uri: str) -> None:
        if "@" in uri.partition("://")[2].partition("/")[0]:
            fix = "name the bucket alone, with credentials in the environment (AWS_ACCESS_KEY_ID, …)"
            raise ConfigError(f"run.dir: a URI with credentials, which config.yaml would hold; fix: {fix}")
        self.uri = uri
        try:
            self._files, root = pyarrow.fs.FileSystem.from_uri(uri)
            self._root = root.rstrip("/")
            if not self._root:
                raise ValueError("it names no bucket")
        except OSError as error:  # pyarrow asks for a bucket's region
            raise self._unreachable(error) from error
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(f"run.dir: {uri!r}: {first_line(error)}; fix: a URI such as s3://bucket/runs") from error

    @classmethod
    def of_run(cls, uri: str) -> "tuple[Storage, str]":
        """Split the URI of a run into its storage and its name."""
        place, mark, query = uri.partition("?")
        parent, _, name = place.rstrip("/").rpartition("/")
        return cls(f"{parent}{mark}{query}"), name

    def run(self, name: str) -> str:
        """Return the URI of a run."""
        place, mark, query = self.uri.partition("?")
        return f"{place.rstrip('/')}/{name}{mark}{query}"

    def has_run(self, name: str) -> bool:
        """Return whether there is a run of this name.

        Raises:
            ServiceError: the storage cannot be reached.
        """
        with self._in_one_line():
            found = self._files.get_file_info(f"{self._root}/{name}/config.yaml")
        return found.type == pyarrow.fs.FileType.File

    def free_name(self, name: str) -> str:
        """Return the name, or the first one with a number, that no run has there; raises as `has_run`."""
        names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
        return next(one for one in names if not self.has_run(one))

    def sizes(self, name: str) -> dict[str, int]:
        """Return the bytes of each file of a run; raises OSError if the storage cannot be reached."""
        folder = f"{self._root}/{name}"
        found = self._files.get_file_info(pyarrow.fs.FileSelector(folder, recursive=True, allow_not_found=True))
        files = (one for one in found if one.type == pyarrow.fs.FileType.File)
        return {str(PurePosixPath(one.path).relative_to(folder)): one.size for one in files}

    def put(self, source: Path, name: str, file: str) -> None:
        """Store a file of a run, whole or not at all; raises OSError if the storage cannot be reached."""
        target = f"{self._root}/{name}/{file}"
        if isinstance(self._files, pyarrow.fs.LocalFileSystem):
            self._files.create_dir(str(PurePosixPath(target).parent), recursive=True)
        local = pyarrow.fs.LocalFileSystem()
        pyarrow.fs.copy_files(str(source), target, source_filesystem=local, destination_filesystem=self._files)

    def delete(self, name: str, file: str) -> None:
        """Delete a file of a run; raises OSError if the storage cannot be reached."""
        self._files.delete_file(f"{self._root}/{name}/{file}")

    def fetch(self, name: str, parent: Path) -> Path:
        """Return the folder of a run in `parent`: the one that is there if it is as far, else a copy from the storage.

        Raises:
            ServiceError: the storage cannot be reached.
            CheckpointError: it has no such run.
        """
        with self._in_one_line():
            files = self.sizes(name)
        if "config.yaml" not in files:
            raise CheckpointError(f"{self.run(name)}: no such run; fix: its URI as the run printed it")
        steps = _whole_checkpoints(files)
        folder = RunDirectory(parent / name)
        here = max(checkpoint_steps(folder.checkpoints_folder), default=0)
        if self._is_copied_here(folder) and here >= max(steps, default=0):
            return folder.path
        partial = RunDirectory(parent / f".{name}.fetched")
        shutil.rmtree(partial.path, ignore_errors=True)
        for made in (partial.checkpoints_folder, partial.rollouts_folder):
            made.mkdir(parents=True)
        partial.path.chmod(0o700)
        with self._in_one_line():
            for file in files:
                if (place := _place(file, steps)) is not None:
                    self._get(f"{name}/{file}", partial.path / place)
        if folder.path.exists():
            older = parent / f"{name}.older"
            shutil.rmtree(older, ignore_errors=True)
            folder.path.rename(older)
            _logger.warning("%s is not as far as %s: it is %s now", folder.path, self.run(name), older)
        return partial.path.rename(folder.path)

    def _is_copied_here(self, run: RunDirectory) -> bool:
        return run.config_file.is_file() and (read_sections(run.config_file).get("run") or {}).get("dir") == self.uri

    def _get(self, file: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        local = pyarrow.fs.LocalFileSystem()
        source = f"{self._root}/{file}"
        pyarrow.fs.copy_files(source, str(target), source_filesystem=self._files, destination_filesystem=local)

    @contextlib.contextmanager
    def _in_one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: OSError) -> ServiceError:
        fix = "the bucket's name, its credentials (AWS_ACCESS_KEY_ID, …) and its server (AWS_ENDPOINT_URL)"
        return ServiceError(f"run.dir: {self.uri} cannot be reached ({first_line(error)}); fix: {fix}")


def fetch_run(uri: str, parent: Path) -> Path:
    """Return the folder of the run that a URI names, see `Storage.fetch`."""
    storage, name = Storage.of_run(uri)
    return storage.fetch(name, parent)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its stop."""
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")


def _whole_checkpoints(files: Iterable[str]) -> set[int]:
    manifests = (re.fullmatch(rf"{CHECKPOINTS}/step_(\d+)/{re.escape(MANIFEST)}", file) for file in files)
    return {int(match[1]) for match in manifests if match}


def _place(file: str, steps: set[int]) -> str | None:
    """Return where a file of the storage belongs in a run directory; None where it is not needed."""
    if file.startswith(f"{HISTORY}/"):
        return "history.sqlite" if file == f"{HISTORY}/step_{max(steps, default=0):06d}.sqlite" else None
    match = re.match(rf"{CHECKPOINTS}/step_(\d+)/", file)
    return file if match is None or int(match[1]) in steps else None
