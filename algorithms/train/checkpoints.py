"""The checkpoints of a run: keep the last ones and the best one, and refuse damaged ones by name."""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from algorithms.grpo.base import StagedAlgorithm
from algorithms.train.checkpoint import save_checkpoint
from algorithms.train.manifest import damage
from algorithms.train.run_directory import checkpoint_path, checkpoint_steps
from algorithms.utils.errors import CheckpointError
from algorithms.utils.files import sync

_DELETED = ".deleted"  # behind the name of one that goes


class Checkpoints:
    """A run's `checkpoints` folder.

    Args:
        folder: of the checkpoints.
        keep: how many of the newest stay; 0: all.
        best_by: the metric whose highest value stays as well; None: no such.
    """

    def __init__(self, folder: Path, *, keep: int = 0, best_by: str | None = None) -> None:
        self.folder, self.keep, self.best_by = folder, keep, best_by

    def save(self, algo: StagedAlgorithm, metrics: dict[str, float]) -> Path:
        """Write a checkpoint, completely or not at all, then delete those that need not be kept; return its path.

        One of this step that is there already stays as it is.

        Raises:
            OSError: it could not be written; those that were there still are.
        """
        path = self._path(algo.steps_done)
        if not path.exists():
            save_checkpoint(algo, self.folder, metrics)
        states = self._states()
        measured = {step: state.get("metrics", {}) for step, state in states.items()}
        for step in checkpoints_to_delete(measured, keep=self.keep, best_by=self.best_by):
            self._delete(step)
            del states[step]
        algo.prune(states[min(states)])
        return path

    def newest(self) -> Path | None:
        """Return the newest checkpoint; None if there is none yet.

        Raises:
            CheckpointError: it is damaged; the message names the one before it.
        """
        steps = self._steps()
        return self.checked(self._path(steps[-1])) if steps else None

    @contextmanager
    def hidden_after(self, path: Path) -> Iterator[None]:
        """Hide the checkpoints of later steps while the block goes back to `path`; restore them if it fails.

        A power failure in the middle finds a history that was taken back, and no checkpoint that needs more of it.
        """
        self._delete_leftovers()
        hidden = [self._hide(step) for step in self._steps() if step > int(path.name.removeprefix("step_"))]
        self._sync(hidden)
        try:
            yield
        except BaseException:
            for path in hidden:
                path.rename(self.folder / path.name.removeprefix(".").removesuffix(_DELETED))
            self._sync(hidden)
            raise

    def delete_after(self, step: int) -> None:
        """Delete the checkpoints of later steps, the last first, and the remains of a killed process.

        Call it where no other process can be saving.
        """
        for rest in self.folder.glob(".step_*.partial"):
            shutil.rmtree(rest)
        self._delete_leftovers()
        for later in reversed(self._steps()):
            if later > step:
                self._delete(later)

    def checked(self, path: Path) -> Path:
        """Return `path` if its checkpoint is intact.

        Raises:
            CheckpointError: it is damaged; the message names the newest whole one before it.
        """
        trouble = damage(path)
        if trouble is None:
            return path
        others = map(self._path, self._steps())
        older = [other for other in others if other.name < path.name and damage(other) is None]
        fix = f"--resume {older[-1]}" if older else "no earlier one is intact; start again"
        raise CheckpointError(f"{path}: the checkpoint is damaged, {trouble}; fix: {fix}")

    def _path(self, step: int) -> Path:
        return checkpoint_path(self.folder, step)

    def _steps(self) -> list[int]:
        """List the steps of all checkpoints, damaged ones included; each got its name when it was complete."""
        return checkpoint_steps(self.folder)

    def _states(self) -> dict[int, dict[str, Any]]:
        """Read the states by step, without damaged ones: a resume from one of those reports the damage."""
        states = {}
        for step in self._steps():
            with contextlib.suppress(OSError, ValueError):
                states[step] = json.loads((self._path(step) / "state.json").read_text(encoding="utf-8"))
        return states

    def _delete(self, step: int) -> None:
        """Delete under another name: what is deleted in part is not taken for a checkpoint. Leftovers go as well."""
        self._delete_leftovers()
        hidden = self._hide(step)
        self._sync([hidden])  # the name first: the disk may forget files before the name of their folder
        shutil.rmtree(hidden)

    def _hide(self, step: int) -> Path:
        return self._path(step).rename(self.folder / f".step_{step:06d}{_DELETED}")

    def _delete_leftovers(self) -> None:
        for rest in self.folder.glob(f".step_*{_DELETED}"):
            shutil.rmtree(rest)

    def _sync(self, renamed: Sequence[Path]) -> None:
        if renamed:
            sync(self.folder)


def checkpoints_to_delete(metrics: Mapping[int, Mapping[str, float]], *, keep: int, best_by: str | None) -> list[int]:
    """Choose the steps whose checkpoints may go: all but the last ones and the best one.

    Args:
        metrics: of each checkpoint's step, what was measured at it.
        keep: how many of the newest stay; 0: all.
        best_by: the metric whose highest value stays as well, the earliest where several have it; None: no such.
            Checkpoints without it, or where it is not finite, cannot be the best.

    Returns:
        Steps, ascending.
    """
    steps = sorted(metrics)
    if keep == 0:
        return []
    kept = set(steps[-keep:])
    values = {step: metrics[step].get(best_by, math.nan) for step in steps} if best_by is not None else {}
    rated = {step: value for step, value in values.items() if math.isfinite(value)}
    if rated:
        kept.add(max(rated, key=lambda step: (rated[step], -step)))
    return [step for step in steps if step not in kept]
