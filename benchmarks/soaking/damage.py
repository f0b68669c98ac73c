"""A file of a run that is damaged before a resume: it is refused in one line that names a way out, which works."""

import hashlib
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from algorithms.train.manifest import committed_steps
from algorithms.train.manifest import damage as damage_of
from algorithms.train.run_directory import CHECKPOINTS, checkpoint_path, checkpoint_steps, step_of
from benchmarks.soaking.command import Command

REFUSED = 2
LONGEST_S = 600.0
# What is committed of a growing file begins here.
FLIPPED = 5
_SMALL = ("config.yaml", "evaluation.json")
_GROWING = ("metrics.jsonl", "conversations.jsonl")


def empty(file: Path) -> None:
    """Truncate a file."""
    file.write_bytes(b"")


def flip(file: Path) -> None:
    """Change a bit."""
    content = bytearray(file.read_bytes())
    content[FLIPPED] ^= 4
    file.write_bytes(content)


def delete(file: Path) -> None:
    """Delete a file."""
    file.unlink()


def comment(file: Path) -> None:
    """Change a file on purpose: the way out is to take it as it is."""
    file.write_bytes(file.read_bytes() + b"# a comment\n")


_DAMAGES: tuple[Callable[[Path], None], ...] = (empty, flip, delete)


@dataclass(frozen=True)
class Damage:
    """What was damaged, and what came of it.

    Args:
        what: in words; empty for nothing.
        checkpoint: that is damaged from now on.
        trouble: what is wrong with the refusal, or with the way out.
    """

    what: str = ""
    checkpoint: Path | None = None
    trouble: str | None = None

    def resumed(self) -> Path | None:
        """Return the checkpoint to resume while the one after it is damaged; None: the newest."""
        if self.checkpoint is None or not self.checkpoint.exists() or not damage_of(self.checkpoint):
            return None
        return _before(self.checkpoint)


def damage_and_resume(command: Command, rng: random.Random) -> Damage:
    """Damage a file, have a resume refuse it, and take the way out, but for that of a checkpoint: it is resumed."""
    run = command.run_directory()
    if run is None:
        return Damage()
    steps = checkpoint_steps(run / CHECKPOINTS)
    newest = checkpoint_path(run / CHECKPOINTS, steps[-1]) if len(steps) > 1 else None
    files = [run / name for name in (*_SMALL, *(_GROWING if committed_steps(run) else ()))]
    files += sorted(newest.rglob("*.*")) if newest else []
    file = rng.choice([file for file in files if file.is_file() and file.stat().st_size > FLIPPED])
    spoil = rng.choice([*_DAMAGES, comment] if file.name == "config.yaml" else _DAMAGES)
    whole, what = file.read_bytes(), f"{file.relative_to(run)}: {spoil.__name__}"
    spoil(file)
    checkpoint = newest if newest in file.parents else None
    trouble = _refused(command, run, file, checkpoint)
    if spoil is comment:
        command_line = [sys.executable, "-m", "algorithms.train.rebuild", str(run)]
        code = subprocess.run(command_line, capture_output=True, timeout=LONGEST_S, check=False).returncode
        trouble = trouble or (f"exit code {code} of the rebuild" if code else None)
    elif checkpoint is None:
        file.write_bytes(whole)
    return Damage(what, checkpoint, trouble and f"{what}: {trouble}")


def _before(checkpoint: Path) -> Path:
    steps = checkpoint_steps(checkpoint.parent)
    return checkpoint_path(checkpoint.parent, steps[steps.index(step_of(checkpoint) or 0) - 1])


def _refused(command: Command, run: Path, file: Path, checkpoint: Path | None) -> str | None:
    """Resume; say what is wrong with the refusal."""
    before = _contents(run)
    process = command.start()
    try:
        code = process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"no end after {LONGEST_S:g} s"
    last = command.last_line()
    named = str(file.relative_to(checkpoint)) if checkpoint else file.name
    way_out = f"--resume {_before(checkpoint)}" if checkpoint else f"algorithms.train.rebuild {run}"
    if code != REFUSED or not last.startswith("error: ") or named not in last or way_out not in last:
        return f"exit code {code}: {last}"
    return None if _contents(run) == before else "a refused resume changed files"


def _contents(run: Path) -> dict[str, str]:
    """Digest all files but hidden ones, such as the lock and what a kill left half-written."""
    files = (file for file in run.rglob("*") if file.is_file())
    paths = {str(file.relative_to(run)): file for file in files}
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest()
        for name, file in sorted(paths.items())
        if not any(part.startswith(".") for part in Path(name).parts)
    }
