"""`python -m algorithms.evaluate --model HUB_ID|FOLDER|RUN --data SOURCE --samples 16`."""

import sys

from algorithms.script.process import prepare

prepare()  # before anything imports Ray, transformers or vLLM


def main(argv: list[str] | None = None) -> int:
    """Evaluate; exit codes as the training script's: 0 done, 2 wrong input, 130 interrupted."""
    from algorithms.configuration.errors import ConfigError
    from algorithms.evaluate.command import run
    from algorithms.script.checkpoint_errors import CheckpointError

    try:
        run(argv)
    except (ConfigError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
