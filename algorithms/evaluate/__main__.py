"""`python -m algorithms.evaluate --model HUB_ID|FOLDER|RUN --data SOURCE --samples 16`."""

import sys

from algorithms.script.endings import DONE, INTERRUPTED, ending_of
from algorithms.script.process import prepare

prepare()  # before anything imports Ray, transformers or vLLM


def main(argv: list[str] | None = None) -> int:
    """Evaluate; exit codes as the training script's: 0 done, 2 wrong input, 1 anything else, 130 interrupted."""
    from algorithms.evaluate.command import run

    try:
        run(argv)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        ending = ending_of(error, go_on="the same command goes on")
        if ending is None:
            raise
        code, line = ending
        print(line, file=sys.stderr)
        return code
    return DONE


if __name__ == "__main__":
    sys.exit(main())
