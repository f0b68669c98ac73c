"""Identify what runs: the version, the commit of a checkout or of a container's build, and the machine."""

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# What a build without .git sets, as the Dockerfile does.
VARIABLE = "R3_GRPO_COMMIT"
_LIMIT_S = 10.0
_CPU_INFO = Path("/proc/cpuinfo")
# Flag → what a processor's maker calls it, the most capable first.
_VECTORS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "avx512f": "AVX-512", "avx2": "AVX2"}


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
    """Return what git prints; None if it fails, or is not there."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def machine() -> str:
    """Return the number of cores, the processor's name and its widest vectors, as far as the system tells them."""
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines() if _CPU_INFO.exists() else []
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = re.sub(r"\((?:R|TM)\)", "", found.get("model name", "unknown processor"))
    # Processors that round alike have the same: runs are repeated to the last bit on these alone.
    vectors = [title for flag, title in _VECTORS.items() if flag in found.get("flags", "").split()]
    return f"{os.cpu_count()} cores ({', '.join([name, *vectors[:1]])})"
