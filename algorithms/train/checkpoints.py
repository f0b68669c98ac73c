"""The checkpoints of a run, without pickle: write, read, keep the last ones and the best one, refuse damaged ones.

step_000040/
  model/            config, tokenizer, model.safetensors: loads with AutoModelForCausalLM and vLLM
  adapter/          with LoRA: what peft loads beside the base; `model` holds the two merged
  optimizer.safetensors
  arrays.npz        the replay history, where it is not in a file of its own
  state.json        counters, positions, where the history's file stood, the step's metrics
  manifest.json     size and checksum of every file

What is large is in several files with an index, and goes through the driver a bucket at a time. How many learners
hold the policy, whole or in shards, is nowhere in it.
"""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from algorithms.grpo.base import BaseAlgorithm
from algorithms.learner.group import LearnerDied, each_learner, put_tensors, set_version, tensor_buckets
from algorithms.learner.weights import Kind
from algorithms.models.names import resolve_model
from algorithms.train.manifest import damage, write_manifest
from algorithms.train.run_directory import checkpoint_path, checkpoint_steps
from algorithms.train.tensor_files import read_tensors, tensor_names, write_tensors
from algorithms.utils.errors import CheckpointError, is_disk_full
from algorithms.utils.files import sync

FORMAT = 4


def save_checkpoint(algo: BaseAlgorithm, folder: Path, metrics: Mapping[str, float] = MappingProxyType({})) -> Path:
    """Write `folder/step_NNNNNN`, complete or not at all; returns its path.

    Raises:
        OSError: it could not be written, as on a full disk; nothing of it is left.
    """
    with complete_checkpoint(folder, algo.steps_done) as partial:
        _write(algo, partial, metrics)
    return checkpoint_path(folder, algo.steps_done)


@contextmanager
def complete_checkpoint(folder: Path, step: int) -> Iterator[Path]:
    """Give a folder to write, which becomes `folder/step_NNNNNN` with a manifest: complete or not at all.

    Raises:
        OSError: it could not be written, as on a full disk; nothing of it is left.
    """
    target = checkpoint_path(folder, step)
    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        write_manifest(partial)
        for path in [*partial.rglob("*"), partial]:
            sync(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if target.exists():
        shutil.rmtree(target)
    os.replace(partial, target)
    sync(folder)


def _write(algo: BaseAlgorithm, partial: Path, metrics: Mapping[str, float]) -> None:
    (partial / "model").mkdir(parents=True)
    _save_model(algo, partial / "model")
    if algo.config.rl_module_settings.lora_rank:
        _save_adapter(algo, partial / "adapter")
    write_tensors(partial, "optimizer", tensor_buckets(algo.learner_group, "optimizer"))
    arrays, state = algo.get_training_state()
    np.savez(partial / "arrays.npz", **dict[str, Any](arrays))  # an Any may be one of its switches
    state = {"format": FORMAT, "metrics": dict(metrics), **state}
    (partial / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")


def read_state(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what a checkpoint keeps of the training loop.

    Raises:
        CheckpointError: a file is missing or unreadable, or of another format.
    """
    with _reading(path):
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        with np.load(path / "arrays.npz", allow_pickle=False) as stored:
            arrays = dict(stored)
    stored_as = state.get("format") if isinstance(state, dict) else None
    if stored_as != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {stored_as}, this version reads {FORMAT}")
    return arrays, state


def load_checkpoint(algo: BaseAlgorithm, path: Path) -> None:
    """Restore a checkpoint into a built algorithm.

    Raises:
        CheckpointError: a file is missing or unreadable, or of another format.
    """
    arrays, state = read_state(path)
    if algo.config.rl_module_settings.lora_rank:
        if not (path / "adapter").is_dir():
            raise CheckpointError(f"{path}: was trained without an adapter; fix: rl_module.lora_rank=0")
        restore_tensors(algo, path / "adapter", "adapter_model", "adapter")
    elif (path / "adapter").is_dir():
        raise CheckpointError(f"{path}: holds an adapter; fix: set rl_module.lora_rank as in training")
    else:
        restore_tensors(algo, path / "model", "model", "weights")
    restore_tensors(algo, path, "optimizer", "optimizer")
    set_version(algo.learner_group, state["weights_version"])
    try:
        algo.set_training_state(arrays, state)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def restore_tensors(algo: BaseAlgorithm, folder: Path, stem: str, kind: Kind) -> None:
    """Load the files into the learners; all of the weights, or of the adapter, must be there.

    Raises:
        CheckpointError: they are not, or have other shapes.
    """
    with _reading(folder):
        if kind != "optimizer":
            (expected, *_) = each_learner(algo.learner_group, lambda learner: learner.weight_names(kind))
            if missing := sorted(expected - tensor_names(folder, stem)):
                raise ValueError(f"{len(missing)} weights are missing, {missing[0]!r} for one")
        for tensors in read_tensors(folder, stem):
            put_tensors(algo.learner_group, kind, tensors)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except LearnerDied:
        raise
    except Exception as error:  # each reader has its own error types; but for this, the checkpoint is not whole
        if is_disk_full(error):  # weights go to the learners through Ray's object store, which spills to the disk
            raise
        raise CheckpointError(f"{path}: the checkpoint cannot be read ({error})") from error


def _save_model(algo: BaseAlgorithm, folder: Path) -> None:
    write_tensors(folder, "model", tensor_buckets(algo.learner_group, "weights"))
    algo.model_configs.save(folder)
    algo.tokenizer.save_pretrained(folder)


def _save_adapter(algo: BaseAlgorithm, folder: Path) -> None:
    from algorithms.learner.model import save_adapter_config

    folder.mkdir()
    write_tensors(folder, "adapter_model", tensor_buckets(algo.learner_group, "adapter"))
    module = algo.config.rl_module_settings
    save_adapter_config(
        folder,
        model=str(resolve_model(module.model)),
        revision=module.revision,
        rank=module.lora_rank,
        alpha=module.lora_alpha,
        targets=module.lora_targets,
    )


_DELETED = ".deleted"  # behind the name of one that goes


class Checkpoints:
    """A run's `checkpoints` folder.

    Args:
        folder: of the checkpoints.
        keep: how many of the newest stay; 0: all.
        best_by: the metric whose highest value stays as well; None: no such.
        rows: return the run's, read with `best_by`: they have evaluations that were made behind a checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 0,
        best_by: str | None = None,
        rows: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
    ) -> None:
        self.folder, self.keep, self.best_by, self.rows = folder, keep, best_by, rows

    def save(self, algo: BaseAlgorithm, metrics: dict[str, float]) -> Path:
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
        if self.best_by is not None:
            for row in self.rows():
                if row["step"] in measured and isinstance(value := row.get(self.best_by), int | float):
                    measured[row["step"]] |= {self.best_by: value}
        for step in checkpoints_to_delete(measured, keep=self.keep, best_by=self.best_by):
            self._delete(step)
            del states[step]
        algo.prune(states[min(states)])
        return path

    def newest(self, below: str | tuple[str, ...] = "") -> Path | None:
        """Return the newest checkpoint; None if there is none yet.

        Args:
            below: what begins the names of the files that have to be intact; the others may be gone.

        Raises:
            CheckpointError: it is damaged; the message names the one before it.
        """
        steps = self._steps()
        return self.checked(self._path(steps[-1]), below) if steps else None

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

    def checked(self, path: Path, below: str | tuple[str, ...] = "") -> Path:
        """Return `path` if its checkpoint is intact, see `newest`.

        Raises:
            CheckpointError: it is damaged; the message names the newest whole one before it.
        """
        trouble = damage(path, below)
        if trouble is None:
            return path
        others = map(self._path, self._steps())
        older = [other for other in others if other.name < path.name and damage(other, below) is None]
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
