"""Identify the code that runs: the version, and the commit of a checkout or of a container's build."""

import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# What a build without .git sets, as the Dockerfile does.
VARIABLE = "R3_GRPO_COMMIT"
_LIMIT_S = 10.0


def code_version() -> str | None:
    """Return the installed version, which only pyproject.toml sets; None where nothing is installed."""
    try:
        return version("r3-grpo")
    except PackageNotFoundError:
        return None


def code_commit() -> str | None:
    """Return the commit that runs, with suffix `-dirty` if files differ from it; None if unknown."""
    package = Path(__file__).resolve().parents[1]
    if given := os.environ.get(VARIABLE):
        return given
    # Of this file: an environment may lie in somebody else's repository.
    if _git(package, "ls-files", "--error-unmatch", str(Path(__file__).resolve())) is None:
        return None
    return _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails, or is not there."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
