"""Recompute the published results of the registered suite from its records: `python -m benchmarks.suite`.

    python -m benchmarks.suite --table-only                    # every number of the test
    python -m benchmarks.suite --table-only --reference grpo   # the others against GRPO
    python -m benchmarks.suite sweep --table-only              # learning rates, on the development tasks

docs/results/evidence.md names the commit whose code made the runs.
"""

import argparse

from benchmarks.suite.records import REFERENCE, read, read_test
from benchmarks.suite.table import rates, report


def main() -> None:
    """Print the tables."""
    arms = sorted({run.arm for run in read_test()})
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["sweep", "test"], default="test")
    parser.add_argument("--table-only", action="store_true", help="as ever: this edition's runs are complete")
    parser.add_argument("--reference", choices=arms, default=REFERENCE, help="the arm that others are compared with")
    given = parser.parse_args()
    if given.what == "sweep":
        print(rates([run for run in read() if run.phase == "sweep"]))
    else:
        print(report(read_test(), reference=given.reference))


if __name__ == "__main__":
    main()
