"""`python -m algorithms.report RUN [RUN …] [--out FILE]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from algorithms.train.exit_codes import DONE, in_one_line
from algorithms.train.stopping import call_and_leave
from r3env.printable import printable


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; exit codes as in training: 0 done, 2 wrong input, 130 interrupted."""
    arguments = make_parser().parse_args(argv)
    from algorithms.reporting.page import write_report
    from algorithms.reporting.trajectories import Limit

    def run() -> int:
        file = write_report(arguments.runs, arguments.out, Limit(arguments.trajectories, arguments.tokens))
        print(printable(f"{file}  {file.stat().st_size / 1e6:,.1f} MB"))
        return DONE

    return in_one_line(run, retry="repeat the same command")


def make_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m algorithms.report",
        description="Write one HTML page on runs, finished or still training: settings, curves, evaluations, "
        "trajectories.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="HTML file to write; default: report.html in the first run"
    )
    parser.add_argument(
        "--trajectories",
        type=_number,
        default=2000,
        metavar="N",
        help="maximum number of trajectories on the page (default 2000)",
    )
    parser.add_argument(
        "--tokens",
        type=_number,
        default=1_000_000,
        metavar="N",
        help="maximum number of their tokens (default 1000000)",
    )
    return parser


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


if __name__ == "__main__":
    call_and_leave(main)
