"""`python -m algorithms.sft --config FILE section.key=value …`."""

import sys

from algorithms.train.exit_codes import INTERRUPTED, in_one_line
from algorithms.utils.process import prepare
from r3env.streams import guard_streams

prepare()  # before anything imports Ray, transformers or TRL


def main(argv: list[str] | None = None) -> int:
    """Train on solutions; exit codes as in training: 0 done, 2 wrong input, 1 anything else, 130 interrupted."""
    from algorithms.sft.command import run

    try:
        return in_one_line(lambda: run(argv), retry="resume with --resume")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    guard_streams()
    sys.exit(main())
