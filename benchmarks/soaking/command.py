"""The command that a soak runs, and its files."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NAME = "soaked"
TRAIN = ("-m", "algorithms.r3_grpo")
# A shared memory of the run's own, which may be filled.
_MOUNTED = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")


@dataclass(frozen=True)
class Command:
    """Trains in a folder that holds nothing else, from where the process before it stopped.

    Args:
        folder: where the run directory goes.
        steps: of the run.
        settings: `section.key=value`.
        launcher: words before Python's, such as `own_memory()`.
    """

    folder: Path
    steps: int
    settings: Sequence[str] = ()
    launcher: Sequence[str] = ()

    def start(self, surroundings: Mapping[str, str] | None = None, resume: Path | None = None) -> subprocess.Popen[str]:
        """Start a process; its standard error goes to a file, as a pipe that nobody reads would stop it.

        Args:
            surroundings: environment variables beside this process's own.
            resume: the checkpoint to continue from; None: the newest.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= surroundings or {}
        with self._output.open("w") as file:
            return subprocess.Popen(
                [*self.launcher, sys.executable, *(_resumed(resume) if resume else self.arguments())],
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
        return _resumed(run) if run else [*TRAIN, *first]

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


@cache
def own_memory() -> tuple[str, ...]:
    """Return the words before a command that give it a /dev/shm of its own; none where that is not permitted."""
    permitted = shutil.which("unshare") and os.geteuid() == 0
    tried = permitted and subprocess.run([*_MOUNTED, "true"], capture_output=True, check=False).returncode == 0
    return _MOUNTED if tried else ()


def _resumed(path: Path) -> list[str]:
    return [*TRAIN, "--resume", str(path)]
