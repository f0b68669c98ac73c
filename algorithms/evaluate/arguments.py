"""The command line of `python -m algorithms.evaluate`."""

import argparse
import re
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m algorithms.evaluate",
        description="Measure how well a model solves problems: pass@k, maj@k, lengths, with 95 % intervals.",
        epilog="Any setting can be given as section.key=value; docs/evaluation.md has examples.",
    )
    made.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that replace the files'")
    made.add_argument(
        "--model",
        help="a Hub id, a folder in Hugging Face's format, or a run (its newest checkpoint); default: embedded:tiny",
    )
    made.add_argument(
        "--data",
        action="append",
        metavar="[NAME=]SOURCE",
        help="problems, named like environment.data; may be given several times; default: a run's held-out problems",
    )
    made.add_argument("--samples", type=_positive, help="answers a problem")
    made.add_argument("--k", type=_numbers, metavar="1,16", help="the k of pass@k and maj@k; default: 1 and --samples")
    made.add_argument("--engine", choices=("transformers", "vllm"), help="inference engine")
    made.add_argument("--reflection", action="store_true", help="give wrong answers a second try")
    made.add_argument("--config", action="append", metavar="FILE", help="YAML files, such as configs/eval_paper.yaml")
    made.add_argument("--out", metavar="FOLDER", help="where results go; the same folder again goes on")
    made.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), type=Path, help="paired differences of two finished evaluations"
    )
    return made


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_positive(number) for number in text.split(",")]
