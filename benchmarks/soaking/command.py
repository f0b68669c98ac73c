"""The command that a soak runs, and its files."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = "soaked"


@dataclass(frozen=True)
class Command:
    """Trains in a folder that holds nothing else, from where the process before it stopped.

    Args:
        folder: where the run directory goes.
        steps: of the run.
        settings: `section.key=value`.
    """

    folder: Path
    steps: int
    settings: Sequence[str] = ()

    def start(self, surroundings: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a process; its standard error goes to a file, as a pipe that nobody reads would stop it.

        Args:
            surroundings: environment variables beside this process's own.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= surroundings or {}
        with self._output.open("w") as file:
            return subprocess.Popen(
                [sys.executable, *self.arguments()],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    def arguments(self) -> list[str]:
        """Build Python's arguments: a new run where there is none to resume."""
        run = self.run_directory()
        first = [f"run.steps={self.steps}", f"run.dir={self.folder}", f"run.name={NAME}", *self.settings]
        return ["-m", "algorithms.r3_grpo", *(["--resume", str(run)] if run else first)]

    def run_directory(self) -> Path | None:
        """Find the run; a process that ended before it had written its configuration left none."""
        return next((file.parent for file in self.folder.glob(f"{NAME}*/config.yaml")), None)

    def steps_made(self) -> int:
        """Count the steps in its metrics; a resumed run has fewer at first than the process before it."""
        with contextlib.suppress(FileNotFoundError):
            return sum(file.read_bytes().count(b"\n") for file in self.folder.glob("*/metrics.jsonl"))
        return 0

    def last_line(self) -> str:
        """Return the last line that the last process printed."""
        lines = self._output.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else ""

    @property
    def _output(self) -> Path:
        # Beside the folder: that may be a disk without room.
        return self.folder.parent / f"{self.folder.name}.err"
