"""Run the suite, or recompute its results: `python -m benchmarks.suite`.

    python -m benchmarks.suite screen         # which tasks are in, and which base learns them
    python -m benchmarks.suite sweep          # learning rates, on the development tasks
    python -m benchmarks.suite                # the registered test
    python -m benchmarks.suite --table-only   # every published number, from the committed records
    python -m benchmarks.suite --table-only --reference grpo   # the others against GRPO

Each resumes where it was interrupted. Bases and runs lie under `--out`, one line a finished run in `--records`.
"""

import argparse
import sys
from pathlib import Path

from algorithms.train.exit_codes import INTERRUPTED, in_one_line
from benchmarks.suite.protocol import RECORDS, REFERENCE


def main() -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["screen", "sweep", "test"], default="test")
    parser.add_argument("--parallel", type=int, default=2, help="bases at a time, one core each; default: 2")
    parser.add_argument("--out", type=Path, default=Path("runs/suite"), help="folder of bases and runs")
    parser.add_argument("--records", type=Path, default=RECORDS, help="default: docs/evidence/suite.jsonl")
    parser.add_argument(
        "--table-only", action="store_true", help="run nothing; write table and figures of the existing records"
    )
    parser.add_argument(
        "--reference", metavar="ARM", default=REFERENCE, help="the arm that the others are compared with"
    )
    parser.add_argument("--base", metavar="TASK:SKILL:N", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    from benchmarks.suite import command

    try:
        return in_one_line(lambda: command.run(arguments), retry="call it again")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one ended", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
