"""The checkpoints of a run: the last ones and the best one are kept, and a damaged one is refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

from algorithms.script.checkpoint import save_checkpoint
from algorithms.script.checkpoint_errors import CheckpointError
from algorithms.script.manifest import damage
from algorithms.script.retention import superfluous


class Checkpoints:
    """A run's `checkpoints` folder.

    Args:
        folder: of the checkpoints.
        keep: how many of the newest stay; 0: all.
        best_by: the metric whose highest value stays as well; None: no such.
    """

    def __init__(self, folder: Path, *, keep: int = 0, best_by: str | None = None) -> None:
        self.folder, self.keep, self.best_by = folder, keep, best_by

    def save(self, algo: Any, metrics: dict[str, float]) -> Path:
        """Write a checkpoint, complete or not at all, then delete what need not be kept; returns its path.

        One of this step that is there already stays as it is.

        Raises:
            OSError: it could not be written; those that were there still are.
        """
        path = self.folder / f"step_{algo.steps_done:06d}"
        if path not in self._complete():
            save_checkpoint(algo, self.folder, metrics)
        states = {int(state["steps_done"]): (folder, state) for folder, state in self._states()}
        measured = {step: state.get("metrics", {}) for step, (_, state) in states.items()}
        for step in superfluous(measured, keep=self.keep, best_by=self.best_by):
            shutil.rmtree(states.pop(step)[0])
        algo.forget_before(states[min(states)][1])
        return path

    def newest(self) -> Path | None:
        """The newest checkpoint; None where there is none yet.

        Raises:
            CheckpointError: it is damaged; the message names the one before it.
        """
        found = self._complete()
        return self.checked(found[-1]) if found else None

    def forget_after(self, step: int) -> None:
        """Delete the checkpoints of later steps: these are made again."""
        for path in self._complete():
            if int(path.name.removeprefix("step_")) > step:
                shutil.rmtree(path)

    def checked(self, path: Path) -> Path:
        """The checkpoint at `path`.

        Raises:
            CheckpointError: it is damaged; the message names the newest whole one before it.
        """
        trouble = damage(path)
        if trouble is None:
            return path
        older = [other for other in self._complete() if other.name < path.name and damage(other) is None]
        fix = f"--resume {older[-1]}" if older else "none before it is whole; start again"
        raise CheckpointError(f"{path}: the checkpoint is damaged, {trouble}; fix: {fix}")

    def _complete(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step_*") if (path / "state.json").is_file())

    def _states(self) -> list[tuple[Path, dict[str, Any]]]:
        return [(path, json.loads((path / "state.json").read_text(encoding="utf-8"))) for path in self._complete()]
