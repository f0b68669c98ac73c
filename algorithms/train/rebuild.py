"""`python -m algorithms.train.rebuild RUN`: take a run's files of record as they are, and list them anew.

For a run whose files were changed on purpose, or are lost in part and cannot be put back.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from algorithms.train.exit_codes import DONE, in_one_line
from algorithms.train.manifest import GROWING, MANIFEST, WHOLE, take_as_they_are
from algorithms.train.metrics_file import bytes_until
from algorithms.train.run_directory import RunDirectory, checkpoint_steps
from algorithms.train.run_location import check_writable
from algorithms.utils.errors import CheckpointError
from r3env.printable import printable
from r3env.streams import guard_streams


def rebuild(run: Path) -> None:
    """Write the manifest of the files as they are.

    Raises:
        CheckpointError: it is no run, a process trains there, or metrics.jsonl cannot be read.
    """
    try:
        directory = RunDirectory.open(run)
        check_writable(run / name for name in (*WHOLE, *GROWING))
        with directory.locked():
            steps = checkpoint_steps(directory.checkpoints_folder)
            files = (directory.metrics_file, directory.conversations_file)
            growing = {file.name: [bytes_until(file, step) for step in steps] for file in files if file.exists()}
            take_as_they_are(run, steps, growing)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{error}; fix: that line, or delete it") from error
    print(printable(f"{run / MANIFEST}: lists the files as they are"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m algorithms.train.rebuild", description="List a run's files of record as they are."
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    arguments = parser.parse_args(argv)

    def run() -> int:
        rebuild(arguments.run)
        return DONE

    return in_one_line(run, retry="repeat the same command")


if __name__ == "__main__":
    guard_streams()
    sys.exit(main())
