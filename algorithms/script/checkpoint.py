"""Our own checkpoint: a Hugging Face folder, the optimizer, and the training loop's state, without pickle.

step_000040/
  model/            config, tokenizer, model.safetensors (float32): loads with AutoModelForCausalLM and vLLM
  optimizer.safetensors
  arrays.npz        the replay history
  state.json        counters, positions, settings of the history
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.rllib.core import DEFAULT_MODULE_ID
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, GenerationConfig

from algorithms.grpo.learners import policy_state
from algorithms.models.names import resolve_model
from algorithms.script.checkpoint_errors import CheckpointError

FORMAT = 1


def save_checkpoint(algo: Any, folder: Path) -> Path:
    """Write `folder/step_NNNNNN`, complete or not at all; returns its path."""
    target = folder / f"step_{algo.steps_done:06d}"
    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "model").mkdir(parents=True)
    _save_model(algo, partial / "model")
    save_file(_on_first_learner(algo, "get_optimizer_tensors"), partial / "optimizer.safetensors")
    arrays, state = algo.get_training_state()
    np.savez(partial / "arrays.npz", **arrays)
    (partial / "state.json").write_text(json.dumps({"format": FORMAT, **state}, indent=1), encoding="utf-8")
    for file in partial.rglob("*"):
        if file.is_file():
            _fsync(file)
    if target.exists():
        shutil.rmtree(target)
    os.replace(partial, target)
    _fsync(folder)
    return target


def latest_checkpoint(folder: Path) -> Path:
    """The newest complete checkpoint in a run's `checkpoints` folder.

    Raises:
        CheckpointError: there is none.
    """
    found = sorted(path for path in folder.glob("step_*") if (path / "state.json").is_file())
    if not found:
        raise CheckpointError(f"{folder}: there is no checkpoint to resume from; see run.checkpoint_every")
    return found[-1]


def load_checkpoint(algo: Any, path: Path) -> None:
    """Put a built algorithm where the checkpoint left off.

    Raises:
        CheckpointError: a file is missing or unreadable, or of another format.
    """
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        weights = load_file(path / "model" / "model.safetensors")
        optimizer = load_file(path / "optimizer.safetensors")
        with np.load(path / "arrays.npz", allow_pickle=False) as stored:
            arrays = dict(stored)
    except Exception as error:  # each reader has its own error types; all mean that the checkpoint is not whole
        raise CheckpointError(f"{path}: the checkpoint cannot be read ({error})") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {state.get('format')}, this version reads {FORMAT}")
    restored = ray.put((weights, optimizer, state["weights_version"]))
    for answer in algo.learner_group.foreach_learner(lambda learner: _restore_learner(learner, restored)):
        answer.get()
    algo.set_training_state(arrays, state)


def _restore_learner(learner: Any, restored: ray.ObjectRef) -> None:
    weights, optimizer, version = ray.get(restored)
    learner.lm.load_state_dict(weights, strict=True)
    learner.set_optimizer_tensors(optimizer)
    learner._weights_seq_no = version


def _save_model(algo: Any, folder: Path) -> None:
    weights = policy_state(algo.learner_group)[1][DEFAULT_MODULE_ID]
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    module = algo.config.rl_module_settings
    source = resolve_model(module.model)
    config = AutoConfig.from_pretrained(source, revision=module.revision, trust_remote_code=module.trust_remote_code)
    config.dtype = "float32"
    config.save_pretrained(folder)
    algo.tokenizer.save_pretrained(folder)
    try:
        GenerationConfig.from_pretrained(source, revision=module.revision).save_pretrained(folder)
    except OSError:  # not every model has one
        pass


def _on_first_learner(algo: Any, method: str) -> Any:
    group = algo.learner_group
    if group.is_local:
        return getattr(group._learner, method)()
    (answer,) = group.foreach_learner(lambda learner: getattr(learner, method)(), remote_actor_ids=[0])
    return answer.get()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
