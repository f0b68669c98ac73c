"""`python -m algorithms.evaluate --model HUB_ID|FOLDER|RUN --data SOURCE --samples 16`."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from algorithms.train.exit_codes import DONE, in_one_line
from algorithms.train.stopping import call_and_leave, interrupt_on_sigterm
from algorithms.utils.process import prepare

prepare()  # before anything imports Ray, transformers or vLLM


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; exit codes as in training: 0 done, 2 wrong input, 1 anything else, 130 interrupted."""
    arguments = parser().parse_intermixed_args(argv)
    again = "repeat the same command"
    return in_one_line(lambda: run(arguments), again, interrupted=f"interrupted; {again} to resume")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, or compare two evaluations; return the exit code."""
    from algorithms.evaluation.benchmarks import evaluate
    from algorithms.evaluation.console import print_comparison
    from algorithms.train.evaluated_run import resolve_config
    from algorithms.train.ray_watch import RayWatch

    if arguments.compare:
        print_comparison(*arguments.compare)
        return DONE
    interrupt_on_sigterm()
    config, seed = resolve_config(arguments)
    with RayWatch("repeat the same command") as watch:
        evaluate(config, seed, arguments.out, watch.start_ray)
    return DONE


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    commands = argparse.ArgumentParser(
        prog="python -m algorithms.evaluate",
        description="Measure how well a model solves problems: pass@k, maj@k, lengths, with 95 % intervals.",
        epilog="Any setting can be given as section.key=value; docs/guides/evaluation.md has examples.",
    )
    commands.add_argument("overrides", nargs="*", metavar="section.key=value", help="override a setting of the files")
    commands.add_argument(
        "--model",
        help="a Hub id, a folder in Hugging Face's format, or a run directory (its newest checkpoint); default: "
        "embedded:tiny",
    )
    commands.add_argument(
        "--data",
        action="append",
        metavar="[NAME=]SOURCE",
        help="problems, written like evaluation.data; may be repeated; default: the run's held-out problems",
    )
    commands.add_argument("--samples", type=_positive, help="answers per problem")
    commands.add_argument(
        "--k", type=_numbers, metavar="1,16", help="the k of pass@k and maj@k; default: 1 and --samples"
    )
    commands.add_argument("--greedy", action="store_true", help="decode greedily, one answer per problem")
    commands.add_argument("--engine", choices=("transformers", "vllm"), help="inference engine")
    commands.add_argument(
        "--reflection", action="store_true", help="also measure pass@1 after a second attempt at incorrect answers"
    )
    commands.add_argument(
        "--config", action="append", metavar="FILE", help="YAML files, such as configs/eval_paper.yaml"
    )
    commands.add_argument("--out", metavar="FOLDER", help="folder for the results; the same folder again resumes")
    commands.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        type=Path,
        help="print the paired differences of two finished evaluations",
    )
    return commands


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_positive(number) for number in text.split(",")]


if __name__ == "__main__":
    call_and_leave(main)
