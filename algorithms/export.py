"""`python -m algorithms.export RUN OUT`: a run's policy as a Hugging Face folder, for transformers and vLLM.

`--push USER/NAME` puts it on the Hub as well, with a model card. Exit codes: 0 done, 2 wrong input (one line names it).
"""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from algorithms.publish.card import model_card
from algorithms.publish.hub import CARD, PublishError, check_name, push

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
        out.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, out, ignore=shutil.ignore_patterns(*WEIGHTS, *PICKLED), dirs_exist_ok=True)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        config = _with_dtype(config, dtype)
        (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if chat := chat_settings(run):
            (out / CHAT).write_text(json.dumps(chat, indent=2) + "\n", encoding="utf-8")
        write_tensors(out, "model", _converted(source, dtype, tied=bool(config.get("tie_word_embeddings"))))
    except (OSError, SafetensorError, json.JSONDecodeError, yaml.YAMLError) as error:
        raise ExportError(f"{checkpoint}: cannot be exported ({' '.join(str(error).split())})") from error
    return checkpoint


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
        OSError: its configuration cannot be read.
        yaml.YAMLError: it is no YAML.
    """
    file = run / "config.yaml"
    config = (yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None) or {}
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
    if not run.is_dir():
        raise ExportError(f"{run}: no such run directory")
    folder = run / "checkpoints"
    found = {
        int(path.name.removeprefix("step_")): path
        for path in sorted(folder.glob("step_*"))
        if (path / "state.json").is_file() and path.name.removeprefix("step_").isdigit()
    }
    if not found:
        raise ExportError(f"{run}: holds no checkpoint; see run.checkpoint_every")
    if step is not None and step not in found:
        raise ExportError(f"--step: {run} has no checkpoint of step {step}; it has {', '.join(map(str, found))}")
    return _whole(found, max(found) if step is None else step)


def _whole(found: dict[int, Path], step: int) -> Path:
    """The checkpoint of a step, with every file as it was written, as `--resume` wants it."""
    from algorithms.train.checkpoint import damage

    trouble = damage(found[step])
    if trouble is None:
        return found[step]
    earlier = sorted((other for other in found if other < step), reverse=True)
    whole = next((other for other in earlier if damage(found[other]) is None), None)
    fix = "no earlier one is intact" if whole is None else f"fix: --step {whole}"
    raise ExportError(f"{found[step]}: the checkpoint is damaged, {trouble}; {fix}")


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
    sys.exit(main())
