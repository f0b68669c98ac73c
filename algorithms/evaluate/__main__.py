"""`python -m algorithms.evaluate --model HUB_ID|FOLDER|RUN --data SOURCE --samples 16`."""

import sys

from algorithms.train.exit_codes import INTERRUPTED, in_one_line
from algorithms.utils.process import prepare
from r3env.streams import guard_streams

prepare()  # before anything imports Ray, transformers or vLLM


def main(argv: list[str] | None = None) -> int:
    """Evaluate; exit codes as in training: 0 done, 2 wrong input, 1 anything else, 130 interrupted."""
    from algorithms.evaluate.command import run

    try:
        return in_one_line(lambda: run(argv), retry="repeat the same command")
    except KeyboardInterrupt:
        print("interrupted; repeat the same command to resume", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    guard_streams()
    sys.exit(main())
