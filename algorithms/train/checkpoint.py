"""Our own checkpoint: a Hugging Face folder, the optimizer, and the training loop's state, without pickle.

step_000040/
  model/            config, tokenizer, model.safetensors (float32): loads with AutoModelForCausalLM and vLLM
  adapter/          with LoRA: what peft loads beside the base; `model` holds the two merged
  optimizer.safetensors
  arrays.npz        the replay history, where it is not in a file of its own
  state.json        counters, positions, where the history's file stood, the step's metrics
  manifest.json     size and checksum of every file

What is large is in several files with an index, and goes through the driver a bucket at a time. How many learners
hold the policy, whole or in shards, is nowhere in it.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from algorithms.grpo.base import StagedAlgorithm
from algorithms.learner.group import LearnerDied, each_learner, put_tensors, set_version, tensor_buckets
from algorithms.learner.weights import Kind
from algorithms.models.names import resolve_model
from algorithms.train.manifest import write_manifest
from algorithms.train.run_directory import checkpoint_path
from algorithms.train.tensor_files import read_tensors, tensor_names, write_tensors
from algorithms.utils.errors import CheckpointError, is_disk_full
from algorithms.utils.files import sync

FORMAT = 3


def save_checkpoint(algo: StagedAlgorithm, folder: Path, metrics: Mapping[str, float] = MappingProxyType({})) -> Path:
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


def _write(algo: StagedAlgorithm, partial: Path, metrics: Mapping[str, float]) -> None:
    (partial / "model").mkdir(parents=True)
    _save_model(algo, partial / "model")
    if algo.config.rl_module_settings.lora_rank:
        _save_adapter(algo, partial / "adapter")
    write_tensors(partial, "optimizer", tensor_buckets(algo.learner_group, "optimizer"))
    arrays, state = algo.get_training_state()
    np.savez(partial / "arrays.npz", **dict[str, Any](arrays))  # an Any may be one of its switches
    state = {"format": FORMAT, "metrics": dict(metrics), **state}
    (partial / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")


def load_checkpoint(algo: StagedAlgorithm, path: Path) -> None:
    """Restore a checkpoint into a built algorithm.

    Raises:
        CheckpointError: a file is missing or unreadable, or of another format.
    """
    with _reading(path):
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        with np.load(path / "arrays.npz", allow_pickle=False) as stored:
            arrays = dict(stored)
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {state.get('format')}, this version reads {FORMAT}")
    if algo.config.rl_module_settings.lora_rank:
        if not (path / "adapter").is_dir():
            raise CheckpointError(f"{path}: was trained without an adapter; fix: rl_module.lora_rank=0")
        _restore(algo, path / "adapter", "adapter_model", "adapter")
    elif (path / "adapter").is_dir():
        raise CheckpointError(f"{path}: holds an adapter; fix: set rl_module.lora_rank as in training")
    else:
        _restore(algo, path / "model", "model", "weights")
    _restore(algo, path, "optimizer", "optimizer")
    set_version(algo.learner_group, state["weights_version"])
    try:
        algo.set_training_state(arrays, state)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _restore(algo: StagedAlgorithm, folder: Path, stem: str, kind: Kind) -> None:
    """Load the files into the learners; all of the weights, or of the adapter, must be there."""
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


def _save_model(algo: StagedAlgorithm, folder: Path) -> None:
    write_tensors(folder, "model", tensor_buckets(algo.learner_group, "weights"))
    algo.model_configs.save(folder)
    algo.tokenizer.save_pretrained(folder)


def _save_adapter(algo: StagedAlgorithm, folder: Path) -> None:
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
