"""`python -m tests.faults.recorded_training MARKS COMMANDS`: train one run after the other in this process.

Args:
    MARKS: a file that is written and synced to say how far a run is: its name and how many steps are done, before and
        after each step. All that lies beside it is synced first, which the first mark says: the disk is known then.
    COMMANDS: the runs' arguments, a JSON list of lists.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from algorithms.train.loop import _Session
from algorithms.train.main import main
from algorithms.train.stopping import leave
from algorithms.utils.files import sync


def main_of_all(marks: Path, commands: list[list[str]]) -> int:
    """Train them; returns the first exit code that is not 0."""
    for path in [marks.parent, *marks.parent.rglob("*")]:
        sync(path)
    descriptor, step = os.open(marks, os.O_WRONLY | os.O_CREAT, 0o600), _Session._step

    def mark(name: str, steps: int) -> None:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{steps} {name}".encode(), 0)
        os.fsync(descriptor)

    def marked_step(session: _Session) -> dict[str, Any]:
        mark(session.directory.name, session.algo.steps_done)
        row = step(session)
        mark(session.directory.name, session.algo.steps_done)
        return row

    mark("", 0)
    _Session._step = marked_step  # type: ignore[assignment, method-assign]
    return next((code for arguments in commands if (code := main("r3_grpo", arguments))), 0)


if __name__ == "__main__":
    leave(main_of_all(Path(sys.argv[1]), json.loads(sys.argv[2])))
