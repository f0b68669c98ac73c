"""Write a run's policy as a Hugging Face folder, for transformers and vLLM."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from algorithms.config.plain_yaml import load_yaml
from algorithms.utils.errors import CheckpointError, InputError

if TYPE_CHECKING:
    import torch

# Beside the model: what else decided its prompts in training.
CHAT = "chat.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
# A checkpoint has none, so that one that is there was put there, for whoever loads the folder.
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")


class ExportError(InputError):
    """Nothing can be exported, or not to this folder."""


def export(run: Path, out: Path, *, step: int | None = None, dtype: str = "float32") -> Path:
    """Write the policy of a checkpoint, adapters merged, with its tokenizer and chat template.

    `chat.json` says how the run's prompts were made beside the template, if it did anything to them.

    Args:
        run: a run directory.
        out: a folder that does not exist or is empty.
        step: of the checkpoint; None takes the last.
        dtype: of the weights, a torch dtype's name.

    Returns:
        The checkpoint that was exported.

    Raises:
        ExportError: no such run or checkpoint, a damaged one, or `out` holds something.
    """
    checkpoint = _checkpoint(run, step)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out}: exists and is not an empty folder")
    from safetensors import SafetensorError

    from algorithms.train.tensor_files import write_tensors

    source = checkpoint / "model"
    try:
        listed = _listed_files(checkpoint)
        with _whole_or_nothing(out):
            out.mkdir(parents=True, exist_ok=True)
            for name in listed:
                if not any(fnmatch(name.name, pattern) for pattern in (*WEIGHTS, *PICKLED)):
                    target = out / name.relative_to("model")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(checkpoint / name, target)
            config = json.loads((out / "config.json").read_text(encoding="utf-8"))
            config = _with_dtype(config, dtype)
            (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            if chat := chat_settings(run):
                (out / CHAT).write_text(json.dumps(chat, indent=2) + "\n", encoding="utf-8")
            write_tensors(out, "model", _converted(source, dtype, tied=bool(config.get("tie_word_embeddings"))))
    except ExportError:
        raise
    except (OSError, SafetensorError, ValueError) as error:
        raise ExportError(f"{checkpoint}: cannot be exported ({' '.join(str(error).split())})") from error
    return checkpoint


@contextmanager
def _whole_or_nothing(out: Path) -> Iterator[None]:
    """Leave a folder absent or empty, as it was, if the block fails: its files would have the next try refused."""
    was_there = out.exists()
    try:
        yield
    except BaseException:
        for entry in out.iterdir() if out.is_dir() else ():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if out.is_dir() and not was_there:
            out.rmdir()
        raise


def _listed_files(checkpoint: Path) -> list[PurePath]:
    """List the model's files by the checkpoint's manifest; whatever else lies there stays there.

    Raises:
        ExportError: one is a link, or weights are not listed.
    """
    from algorithms.train.manifest import listed_files
    from algorithms.train.tensor_files import tensor_files

    listed = [PurePath(name) for name in listed_files(checkpoint) if PurePath(name).parts[:1] == ("model",)]
    weights = (file.relative_to(checkpoint) for file in tensor_files(checkpoint / "model", "model"))
    for name in (*listed, *weights):
        if name not in listed or (checkpoint / name).resolve() != checkpoint.resolve() / name:
            what = "is a link, or no file that the checkpoint lists"
            raise ExportError(f"{checkpoint / name}: {what}; fix: put back a whole copy of the checkpoint")
    return listed


def chat_settings(run: Path) -> dict[str, Any]:
    """Return what a run's configuration adds to the chat template, by the settings' names; empty if nothing.

    Raises:
        OSError, ValueError: its configuration cannot be read.
    """
    file = run / "config.yaml"
    config = (load_yaml(file.read_text(encoding="utf-8")) if file.is_file() else None) or {}
    if not isinstance(config, dict):
        raise ValueError(f"{file}: holds no settings")
    module, environment = config.get("rl_module") or {}, config.get("environment") or {}
    found = {
        "chat_template_kwargs": module.get("chat_template_kwargs") or {},
        "earlier_turns": module.get("earlier_turns") or "sampled",
        "system": environment.get("system"),
    }
    plain: dict[str, Any] = {"chat_template_kwargs": {}, "earlier_turns": "sampled", "system": None}
    return {name: value for name, value in found.items() if value != plain[name]}


def _checkpoint(run: Path, step: int | None) -> Path:
    """Return the checkpoint of a step, with every file as it was written, as `--resume` wants it."""
    from algorithms.train.integrity import check_record
    from algorithms.train.manifest import damage
    from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, checkpoint_path, checkpoint_steps, step_of

    if not run.is_dir():
        raise ExportError(f"{run}: no such run directory")
    if run.parent.name == CHECKPOINTS and (own := step_of(run)) is not None:
        raise ExportError(f"{run}: is a checkpoint; fix: name its run, {run.parent.parent}, and --step {own}")
    folder = run / CHECKPOINTS
    found = checkpoint_steps(folder)
    if not found:
        raise ExportError(f"{run}: holds no checkpoint; see run.checkpoint_every")
    if step is not None and step not in found:
        raise ExportError(f"--step: {run} has no checkpoint of step {step}; it has {', '.join(map(str, found))}")
    chosen = found[-1] if step is None else step
    trouble = damage(checkpoint_path(folder, chosen))
    if trouble is not None:
        earlier = (one for one in reversed(found) if one < chosen)
        whole = next((one for one in earlier if damage(checkpoint_path(folder, one)) is None), None)
        fix = "no earlier one is intact" if whole is None else f"fix: --step {whole}"
        raise ExportError(f"{checkpoint_path(folder, chosen)}: the checkpoint is damaged, {trouble}; {fix}")
    try:
        check_record(RunDirectory(run), chosen)
    except CheckpointError as error:
        raise ExportError(str(error)) from error
    return checkpoint_path(folder, chosen)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The model's configuration, and those inside it, with the type of its weights under the name it has there."""
    changed = {key: _with_dtype(value, dtype) if isinstance(value, dict) else value for key, value in config.items()}
    return changed | {key: dtype for key in ("dtype", "torch_dtype") if key in config}


def _converted(source: Path, dtype: str, *, tied: bool) -> "Iterator[dict[str, torch.Tensor]]":
    import torch

    from algorithms.train.tensor_files import read_tensors

    def converted(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        found = tensor.to(getattr(torch, dtype))
        if not found.isfinite().equal(tensor.isfinite()):
            raise ExportError(f"--dtype: {name} has values beyond {dtype}; fix: --dtype bfloat16")
        return found

    for tensors in read_tensors(source, "model"):
        yield {
            name: converted(name, tensor) for name, tensor in tensors.items() if not (tied and name == "lm_head.weight")
        }
