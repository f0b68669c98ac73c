"""A step, what it needs of a machine, and what it returns. Imports neither torch nor Ray."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Machine:
    """What a machine has.

    Args:
        gpus: the name of each one that CUDA sees.
        gpu_gib: memory of the smallest of them, in GiB.
        facts: driver, versions of libraries and the like, for the record.
    """

    gpus: tuple[str, ...] = ()
    gpu_gib: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Where steps compute: `cuda` or `cpu`."""
        return "cuda" if self.gpus else "cpu"


@dataclass(frozen=True)
class Needs:
    """What a step needs.

    Args:
        gpus: how many; 0: it has a small form for a CPU.
        gpu_gib: memory of the GPU, in GiB, for the model of 1.5 billion parameters.
        modules: Python modules that are not everywhere.
    """

    gpus: int = 0
    gpu_gib: float = 0.0
    modules: tuple[str, ...] = ()

    def unmet(self, machine: Machine, size: str) -> str:
        """Return why the step cannot run there with a model of this size; empty if it can."""
        if len(machine.gpus) < self.gpus:
            found = f"CUDA sees {len(machine.gpus)}" if machine.gpus else "CUDA sees none"
            return f"needs {'a GPU' if self.gpus == 1 else f'{self.gpus} GPUs'}, {found}"
        if machine.gpus and size != "tiny" and machine.gpu_gib < self.gpu_gib:
            return f"needs {self.gpu_gib:g} GiB of GPU memory, there are {machine.gpu_gib:.0f}"
        missing = [name for name in self.modules if importlib.util.find_spec(name) is None]
        return f"needs {', '.join(missing)}, not installed" if missing else ""


@dataclass(frozen=True)
class Job:
    """The input of a step.

    Args:
        size: of the model, `tiny` or `1.5b`.
        device: `cuda` or `cpu`.
        folder: for files of this and of later steps.
        options: of the step, from the catalog.
    """

    size: str
    device: str
    folder: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def small(self) -> bool:
        """Whether this run only shows that the step works."""
        return self.size == "tiny"

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU to measure."""
        return self.device == "cuda"

    @property
    def dtype(self) -> str:
        """Type to compute in."""
        return "bfloat16" if self.on_gpu else "float32"


@dataclass(frozen=True)
class Outcome:
    """The result of a step.

    Args:
        summary: for the table, in a line.
        figures: every number, as JSON takes it.
        wrong: what is not as it must be, in words; empty: everything is.
    """

    summary: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    wrong: Sequence[str] = ()


class CannotRun(Exception):
    """Raised by a step that cannot run here; the message says why."""


@dataclass(frozen=True)
class Step:
    """One row of the table.

    Args:
        name: for `--steps`.
        what: it measures or checks.
        target: `module:function`, which takes a Job and returns an Outcome in a process of its own.
        needs: of the machine.
        limit_s: seconds after which it is ended.
        options: for the function.
        environment: variables of its process.
    """

    name: str
    what: str
    target: str
    needs: Needs = Needs()
    limit_s: float = 300.0
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
