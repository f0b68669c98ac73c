"""The GPUs that a check counts with: what this machine's driver lists and torch can use, or a card that is not here."""

import argparse
import contextlib
import functools
import itertools
import os
import re
import subprocess
from dataclasses import dataclass
from typing import NamedTuple

from algorithms.config.errors import ConfigError, shown

# First driver of each major version of CUDA. Source: NVIDIA, CUDA Compatibility, minor version compatibility.
_LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}
# First compute capability that each major version of CUDA compiles for. Source: NVIDIA, CUDA release notes.
_LEAST_CAPABILITY = {"12": (5, 0), "13": (7, 5)}
# vLLM computes in bfloat16 from here on.
BFLOAT16_CAPABILITY = (8, 0)
_NVIDIA_SMI = ("nvidia-smi", "--format=csv,noheader,nounits")
# Old drivers know no compute capability, and answer nothing when they are asked for it.
_QUERIES = ("driver_version,memory.total,compute_cap,name", "driver_version,memory.total")
_NVIDIA_SMI_TIMEOUT_S = 20.0
# More memory than any card has.
_MOST_GIB = 1e6


class GPU(NamedTuple):
    """A GPU's name and compute capability."""

    name: str
    capability: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} (compute capability {'.'.join(map(str, self.capability))})"


@dataclass(frozen=True)
class FoundGPUs:
    """GPUs as the driver lists them, or cards that are not in this machine.

    Args:
        driver: its version; "" of other cards.
        least_bytes: memory of the smallest.
        gpus: those whose compute capability the driver names.
    """

    driver: str
    least_bytes: int
    gpus: tuple[GPU, ...] = ()

    def below(self, capability: tuple[int, ...]) -> list[GPU]:
        """Return the GPUs of a lower compute capability."""
        return [gpu for gpu in self.gpus if gpu.capability < capability]


# Of CUDA_VISIBLE_DEVICES, what the driver's tool may take too.
_GPU_NAMES = re.compile(r"(\d+|GPU-[\w-]+)(,(\d+|GPU-[\w-]+))*")


_other_cards: list[FoundGPUs] = []


def add_card_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--card`, for `count_for_card`."""
    parser.add_argument(
        "--card", metavar="GIB", help="with --check: count for GPUs of so much memory instead of this machine's"
    )


def count_for_card(gib: str | None, *, checks: bool) -> None:
    """Have this process count for GPUs of so many GiB, as many as a run reserves, instead of this machine's.

    Args:
        gib: the argument; None changes nothing.
        checks: whether `--check` was given.

    Raises:
        ConfigError: no size, or a run that would start.
    """
    if gib is None:
        return
    if not checks:
        raise ConfigError("--card: is for --check alone; fix: add --check, or leave out --card")
    with contextlib.suppress(ValueError):
        if 0 < float(gib) < _MOST_GIB:
            _other_cards[:] = [FoundGPUs("", int(float(gib) * 2**30))]
            return
    raise ConfigError(f"--card: {shown(gib)} is no memory in GiB; fix: what the card has, as in --card 22.5")


def other_card() -> FoundGPUs | None:
    """Return the card that this process counts for; None: this machine's own."""
    return _other_cards[0] if _other_cards else None


def found_gpus() -> FoundGPUs | None:
    """Return this machine's visible GPUs, or the card to count for; None without a driver, or if it does not answer."""
    return other_card() or _listed_gpus()


@functools.cache
def _listed_gpus() -> FoundGPUs | None:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # CUDA takes names that the tool does not, such as beginnings of them: then it is asked for all GPUs.
    choices = [["-i", visible], []] if _GPU_NAMES.fullmatch(visible) else [[]]
    for only, query in itertools.product(choices, _QUERIES):
        command = [*_NVIDIA_SMI, f"--query-gpu={query}", *only]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError):
            return None
        if not answer.returncode:
            return parse_gpus(answer.stdout)
    return None


def parse_gpus(listing: str) -> FoundGPUs | None:
    """Read `nvidia-smi`'s lines of `driver, MiB` or `driver, MiB, capability, name`; None without a GPU."""
    rows = [[part.strip() for part in line.split(",", 3)] for line in listing.splitlines() if "," in line]
    sizes = [int(row[1]) * 2**20 for row in rows if row[1].isdigit()]
    known = [row for row in rows if len(row) == 4 and row[2].replace(".", "").isdigit()]
    gpus = tuple(GPU(row[3], tuple(map(int, row[2].split(".")))) for row in known)
    return FoundGPUs(rows[0][0], min(sizes, default=0), gpus) if rows else None


def least_capability() -> tuple[int, ...]:
    """Return the lowest compute capability that the installed torch has code for; () if it has none for GPUs."""
    import torch

    names = [name.removeprefix("sm_").rstrip("af") for name in torch.cuda.get_arch_list() if name.startswith("sm_")]
    compiled = [(int(name[:-1]), int(name[-1])) for name in names]
    return min(compiled, default=_LEAST_CAPABILITY.get((toolkit() or "").partition(".")[0], ()))


def toolkit() -> str | None:
    """Return the version of CUDA that torch was built with; None for a build for the CPU."""
    import torch

    return torch.version.cuda


def driver_problem(driver: str, cuda: str | None) -> str | None:
    """Return what keeps torch from the GPUs of a driver, and the fix; None where nothing does.

    Args:
        driver: its version, as in "550.54.15".
        cuda: what torch was built with, as in "13.0"; None: a build for the CPU.
    """
    if cuda is None:
        return "torch is a build for the CPU; fix: make install VLLM=gpu"
    least = _LEAST_DRIVER.get(cuda.partition(".")[0])
    major = driver.partition(".")[0]
    if least is None or not major.isdigit() or int(major) >= least:
        return None
    return (
        f"CUDA {cuda}, which torch and vLLM are built with, needs driver {least} or later; fix: a newer NVIDIA driver"
    )
