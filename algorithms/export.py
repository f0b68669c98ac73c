"""`python -m algorithms.export RUN OUT`: a run's policy as a Hugging Face folder, for transformers and vLLM.

`--push USER/NAME` puts it on the Hub as well, with a model card. Exit codes: 0 done, 2 wrong input (one line names it).
"""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from algorithms.config.plain_yaml import load_yaml
from algorithms.publish.card import model_card
from algorithms.publish.hub import CARD, PublishError, check_name, push
from algorithms.utils.errors import CheckpointError
from r3env.streams import guard_streams

if TYPE_CHECKING:
    import torch

DONE, WRONG_INPUT = 0, 2
# Beside the model: what else decided its prompts in training.
CHAT = "chat.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
# A checkpoint has none, so that one that is there was put there, for whoever loads the folder.
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")


class ExportError(ValueError):
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m algorithms.export", description=str(__doc__).splitlines()[0])
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("out", metavar="OUT", type=Path, help="a folder that does not exist or is empty")
    parser.add_argument("--step", type=int, help="step of the checkpoint; default: the last")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument(
        "--push", metavar="USER/NAME", help="upload OUT to this repository on the Hub, with a model card"
    )
    parser.add_argument("--private", action="store_true", help="with --push: make a new repository private")
    arguments = parser.parse_args(argv)
    if arguments.private and not arguments.push:
        parser.error("--private: needs --push")
    try:
        if arguments.push:
            check_name(arguments.push)
        checkpoint = export(arguments.run, arguments.out, step=arguments.step, dtype=arguments.dtype)
        address = _published(arguments, checkpoint) if arguments.push else None
    except (ExportError, PublishError) as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_INPUT
    print(f"{checkpoint.name} of {arguments.run} is in {arguments.out}, in {arguments.dtype}{_left_out(arguments.out)}")
    for line in _chat_lines(chat_settings(arguments.run), arguments.out):
        print(line)
    if address:
        print(f"published at {address}")
    return DONE


def _published(arguments: argparse.Namespace, checkpoint: Path) -> str:
    """Write the card and upload all of OUT; returns the address."""
    step = int(checkpoint.name.removeprefix("step_"))
    name = arguments.push.rpartition("/")[2]
    try:
        card = model_card(arguments.run, step, name=name, dtype=arguments.dtype)
    except ValueError as error:
        raise ExportError(f"{error}; the export is in {arguments.out}, without a card") from error
    (arguments.out / CARD).write_text(card, encoding="utf-8")
    message = f"Step {step} of {arguments.run.resolve().name}"
    return push(arguments.out, arguments.push, private=arguments.private, message=message)


def _left_out(out: Path) -> str:
    """What a user may miss: the other parts of a composite model, which no checkpoint has."""
    from algorithms.models.composite import TEXT_OF

    whole = json.loads((out / "config.json").read_text(encoding="utf-8")).get(TEXT_OF)
    return f": the text model of {whole} alone, without its other parts" if whole else ""


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


def _chat_lines(chat: dict[str, Any], out: Path) -> "Iterator[str]":
    if kwargs := chat.get("chat_template_kwargs"):
        text = shlex.quote(json.dumps(kwargs))
        yield f"its chat template was given variables: vllm serve {out} --default-chat-template-kwargs {text}"
    if system := chat.get("system"):
        yield f"its conversations began with a system turn, which callers have to send: {system!r}"


def _checkpoint(run: Path, step: int | None) -> Path:
    """Return the checkpoint of a step, with every file as it was written, as `--resume` wants it."""
    from algorithms.train.manifest import damage
    from algorithms.train.record import check_record
    from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, checkpoint_path, checkpoint_steps

    if not run.is_dir():
        raise ExportError(f"{run}: no such run directory")
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

    for tensors in read_tensors(source, "model"):
        yield {
            name: tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
            if not (tied and name == "lm_head.weight")
        }


if __name__ == "__main__":
    guard_streams()
    sys.exit(main())
