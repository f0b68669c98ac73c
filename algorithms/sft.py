"""`python -m algorithms.sft --config FILE section.key=value …`."""

import argparse
from collections.abc import Sequence

from algorithms.preflight.gpus import add_card_argument
from algorithms.train.exit_codes import in_one_line
from algorithms.train.stopping import call_and_leave
from algorithms.utils.process import prepare

prepare()  # before anything imports Ray, transformers or TRL


def main(argv: Sequence[str] | None = None) -> int:
    """Train on solutions; exit codes as in training: 0 done, 2 wrong input, 1 anything else, 130 interrupted."""
    from algorithms.finetuning.start import run

    arguments = parser().parse_intermixed_args(argv)
    return in_one_line(lambda: run(arguments), retry="resume with --resume")


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    commands = argparse.ArgumentParser(
        prog="python -m algorithms.sft",
        description="A supervised start: train a model on its training data's worked solutions, before reinforcement "
        "learning.",
        epilog="Any setting can be given as section.key=value; docs/guides/supervised-start.md has examples.",
    )
    commands.add_argument("overrides", nargs="*", metavar="section.key=value", help="override a setting of the files")
    commands.add_argument(
        "--config", action="append", metavar="FILE", help="YAML file of settings, the training's; may be repeated"
    )
    commands.add_argument("--resume", metavar="RUN", help="resume the run in this directory from its last checkpoint")
    commands.add_argument(
        "--check", action="store_true", help="print what would be trained and how much memory it needs, and exit"
    )
    add_card_argument(commands)
    return commands


if __name__ == "__main__":
    call_and_leave(main)
