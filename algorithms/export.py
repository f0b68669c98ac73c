"""`python -m algorithms.export RUN OUT`: a run's policy as a Hugging Face folder, for transformers and vLLM.

`--push USER/NAME` puts it on the Hub as well, with a model card. Exit codes: 0 done, 2 wrong input (one line names
it), 130 interrupted.
"""

import argparse
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from algorithms.publishing.hub import CARD, check_name, model_card, push
from algorithms.publishing.model_folder import ExportError, chat_settings, export
from algorithms.train.exit_codes import DONE, in_one_line
from algorithms.train.stopping import call_and_leave, interrupt_on_sigterm
from r3env.printable import printable


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
    if arguments.private and arguments.push is None:
        parser.error("--private: needs --push")
    return in_one_line(lambda: _export(arguments), retry="repeat the same command into another folder")


def _export(arguments: argparse.Namespace) -> int:
    interrupt_on_sigterm()
    if arguments.push is not None:  # "" as of a variable that is not set
        check_name(arguments.push)
    checkpoint = export(arguments.run, arguments.out, step=arguments.step, dtype=arguments.dtype)
    address = _published(arguments, checkpoint) if arguments.push else None
    what = f"{checkpoint.name} of {arguments.run} is in {arguments.out}, in {arguments.dtype}"
    print(printable(f"{what}{_left_out(arguments.out)}"))
    for line in _chat_lines(chat_settings(arguments.run), arguments.out):
        print(printable(line))
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
    """Return what a user may miss: the other parts of a composite model, which no checkpoint has."""
    from algorithms.models.composite import TEXT_OF

    whole = json.loads((out / "config.json").read_text(encoding="utf-8")).get(TEXT_OF)
    return f": the text model of {whole} alone, without its other parts" if whole else ""


def _chat_lines(chat: dict[str, Any], out: Path) -> "Iterator[str]":
    if kwargs := chat.get("chat_template_kwargs"):
        text = shlex.quote(json.dumps(kwargs))
        yield f"its chat template was given variables: vllm serve {out} --default-chat-template-kwargs {text}"
    if system := chat.get("system"):
        yield f"its conversations began with a system turn, which callers have to send: {system!r}"


if __name__ == "__main__":
    call_and_leave(main)
