"""Copy a run directory to object storage while the run goes on: nothing waits for the network, but the run's end.

The files are taken as they are at a checkpoint, and a thread copies them: checkpoints last, and of each its manifest
last. A machine that is lost in between leaves the run as it was at the checkpoint before.
"""

import contextlib
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from algorithms.history.database import copy_database
from algorithms.train.manifest import MANIFEST
from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, checkpoint_steps
from algorithms.train.storage import HISTORY, Storage, first_line

# Between tries while the storage cannot be reached, and how long the run's end waits for it then.
FIRST_PAUSE_S, LONGEST_PAUSE_S, LAST_WAIT_S = 1.0, 60.0, 120.0
SILENT_S = 2.0
_STAGE = ".mirror"
# What a run itself deletes; nothing else is deleted in the storage.
_OF_A_STEP = re.compile(rf"(?:{CHECKPOINTS}/step_(\d+)/.*|{HISTORY}/step_(\d+)\.sqlite|rollouts/step-(\d+)\.parquet)")

_logger = logging.getLogger(__name__)


class Mirror:
    """Keeps a copy of a run directory.

    Args:
        directory: of the run; its name is that of the copy.
        storage: where the copy goes.
        done: the last step on record: what the storage has of later ones is made again.
    """

    def __init__(self, directory: RunDirectory, storage: Storage, done: int = 0) -> None:
        self._directory, self._storage, self._done = directory, storage, done
        self._stage = directory.path / _STAGE
        self._taken = 0
        self._sent: dict[str, tuple[int, int]] = {}
        self._change = threading.Condition()
        self._next: Path | None = None  # what is to be copied
        self._busy: Path | None = None  # what is being copied
        self._closed_at: float | None = None
        self._trouble: str | None = None
        shutil.rmtree(self._stage, ignore_errors=True)
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Take the files as they are now, to be copied in the background. Call it while none is written."""
        self._taken += 1
        staged = self._stage / f"{self._taken}"
        for file in self._files():
            with contextlib.suppress(FileNotFoundError):  # a tracker's own, which it has deleted just now
                _link(file, staged / file.relative_to(self._directory.path))
        steps = checkpoint_steps(self._directory.checkpoints_folder)
        if steps and self._directory.history_file.exists():
            _link(self._history_at(steps[-1]), staged / HISTORY / f"step_{steps[-1]:06d}.sqlite")
        with self._change:
            replaced, self._next = self._next, staged
            self._change.notify()
            if replaced is not None and replaced != self._busy:
                shutil.rmtree(replaced)

    def close(self) -> None:
        """Wait until everything is copied; while the storage cannot be reached, `LAST_WAIT_S` at most."""
        with self._change:
            self._closed_at = time.monotonic()
            self._change.notify()
        self._thread.join(SILENT_S)
        if self._thread.is_alive():
            print(f"copying the run to {self._storage.uri}; Ctrl-C ends that", file=sys.stderr)
        self._thread.join()  # waits: as long as the storage takes files; a signal ends the wait
        if self._next is None:
            shutil.rmtree(self._stage, ignore_errors=True)
        else:
            _logger.warning(
                "run.dir: %s lacks the newest files of %s (%s); fix: --resume %s once it can be reached",
                self._storage.uri,
                self._directory.path,
                self._trouble,
                self._directory.path,
            )

    def _files(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self._directory.path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            own = (name for name in names if not name.startswith((".", self._directory.history_file.name)))
            yield from (Path(folder, name) for name in own)

    def _history_at(self, step: int) -> Path:
        """Return a copy of the history, made once for a checkpoint: evaluations add nothing to it."""
        copy = self._stage / f"{step}.sqlite"
        if not copy.exists():
            for older in self._stage.glob("*.sqlite"):
                older.unlink()
            copy_database(self._directory.history_file, copy)
        return copy

    def _work(self) -> None:
        pause = FIRST_PAUSE_S
        while (staged := self._wait()) is not None:
            try:
                self._copy(staged)
            except Exception as error:  # a client's, of any type: the run is more than its copy
                if self._trouble is None:
                    _logger.warning(
                        "run.dir: %s cannot be reached (%s); the run goes on in %s, and its files are sent later",
                        self._storage.uri,
                        first_line(error),
                        self._directory.path,
                    )
                self._trouble = first_line(error)
                with self._change:
                    if self._closed_at is not None and time.monotonic() - self._closed_at >= LAST_WAIT_S:
                        return
                    self._change.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                if self._trouble is not None:
                    _logger.warning("run.dir: %s has all files again", self._storage.uri)
                self._trouble, pause = None, FIRST_PAUSE_S
            with self._change:
                if self._trouble is None and self._next == staged:
                    self._next = None
                self._busy = None
                if self._next != staged:
                    shutil.rmtree(staged)

    def _wait(self) -> Path | None:
        """Wait for files to copy; None at the end."""
        with self._change:
            self._change.wait_for(lambda: self._next is not None or self._closed_at is not None)
            self._busy = self._next
            return self._next

    def _copy(self, staged: Path) -> None:
        """Bring the storage to the state that was taken; raises OSError."""
        name, there = self._directory.name, self._storage.sizes(self._directory.name)
        files = {path.relative_to(staged).as_posix(): path for path in staged.rglob("*") if path.is_file()}
        for file in sorted(files, key=_order):
            found = files[file].stat()
            mark = found.st_size, found.st_mtime_ns
            is_kept = 0 < _step(file) <= self._done and there.get(file) == found.st_size
            if self._sent.get(file) != mark and not is_kept:
                self._storage.put(files[file], name, file)
            self._sent[file] = mark
        for file in there.keys() - files.keys():
            if _step(file):
                self._storage.delete(name, file)
                self._sent.pop(file, None)


def _step(file: str) -> int:
    """Return the step that a file is of; 0 for one that is of the whole run."""
    match = _OF_A_STEP.fullmatch(file)
    return int(next(filter(None, match.groups()))) if match else 0


def _order(file: str) -> tuple[int, bool, str]:
    """Sort checkpoints behind all else, the older first, and the manifest of each folder behind its files."""
    step = _step(file) if file.startswith(f"{CHECKPOINTS}/") else 0
    return step, file.endswith(MANIFEST), file


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, under which it outlives the first; where the file system cannot, copy it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
