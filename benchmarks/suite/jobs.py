"""The runs of the suite: one per arm on each difficulty of a base, as runs of an ablation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from algorithms.config.errors import ConfigError
from algorithms.config.files import configs_folder
from algorithms.config.loading import DEFAULT_NAME
from algorithms.utils.files import write_text
from benchmarks.ablation.arms import ARMS, Arm
from benchmarks.ablation.plan import Job, Task, plan
from benchmarks.suite.bases import RESPONSE_LIMIT, Spec
from benchmarks.suite.protocol import Difficulty, Phase, Protocol
from benchmarks.suite.tasks import HELD_OUT_SEED, TRAINING_SEED, Screened, generated
from r3env.assets.arithmetic import REFLECTION_GUIDANCE


@dataclass(frozen=True)
class Planned:
    """One run of the suite.

    Args:
        arm: by its name in tables.
        lr: its learning rate.
    """

    phase: Phase
    spec: Spec
    difficulty: Difficulty
    arm: str
    lr: float

    @property
    def key(self) -> tuple[Any, ...]:
        """The run's identity, in a record as well."""
        spec = self.spec
        return self.phase, spec.task, self.difficulty, spec.skill, spec.replicate, self.arm, self.lr


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return `Planned.key` of a record."""
    return tuple(record[name] for name in ("phase", "task", "difficulty", "skill", "base", "arm", "lr"))


def chosen(screened: Sequence[Screened], protocol: Protocol, phase: Phase) -> list[str]:
    """Return the phase's tasks: the first that the filter let through are for development, the next for the test.

    Raises:
        ConfigError: the filter has not found enough yet.
    """
    inside = [one.name for one in screened if one.reason is None]
    development, test = protocol.tasks["development"], protocol.tasks["test"]
    start, count = (0, development) if phase == "sweep" else (development, test)
    if len(inside) < start + count:
        raise ConfigError(
            f"{len(inside)} tasks have passed the filter, {start + count} are needed; "
            "fix: python -m benchmarks.suite screen"
        )
    return inside[start : start + count]


def planned(tasks: Iterable[str], protocol: Protocol, phase: Phase) -> dict[Spec, list[Planned]]:
    """List all runs of a phase by base.

    The sweep takes one base of each task at one difficulty with every rate, the test every base at every difficulty
    with each arm's own.

    Raises:
        ConfigError: an arm of the test has no rate of its own yet.
    """
    sweep = phase == "sweep"
    if sweep:
        specs = [Spec(task, skill, 0) for task, skill in zip(tasks, protocol.sweep.skills, strict=True)]
    else:
        kinds = protocol.bases.items()
        specs = [Spec(task, skill, number) for task in tasks for skill, count in kinds for number in range(count)]
    return {
        spec: [
            Planned(phase, spec, difficulty, name, rate)
            for difficulty in ((protocol.sweep.difficulty,) if sweep else protocol.difficulties)
            if f"{spec.label}:{difficulty}" not in protocol.excluded
            for name in protocol.arms
            for rate in (protocol.rates if sweep else (_own_rate(name, protocol),))
        ]
        for spec in specs
    }


def _own_rate(name: str, protocol: Protocol) -> float:
    rate = protocol.arms[name].lr
    if rate is None:
        raise ConfigError(f"arms.{name}.lr: has no value; fix: python -m benchmarks.suite sweep, then write it down")
    return rate


def job(run: Planned, protocol: Protocol, base: Path, out: Path) -> Job:
    """Make the run's complete configuration.

    Args:
        run: which.
        protocol: of the suite.
        base: folder of the base, with one for each difficulty.
        out: gets the run.

    Raises:
        ConfigError: a setting that an arm does not take.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / "task.yaml"
    write_text(file, yaml.safe_dump(settings(run, protocol, base)))
    entry = protocol.arms[run.arm]
    arm = ARMS[entry.arm].with_settings([*entry.settings, f"training.lr={run.lr}"])
    named = Arm(f"{run.arm}@{run.lr:g}", arm.algorithm, arm.method, arm.settings)
    (made,) = plan([named], [run.spec.seed], Task((file,), (), protocol.tokens), out)
    return made


def settings(run: Planned, protocol: Protocol, base: Path) -> dict[str, Any]:
    """Return the task as a configuration file: the protocol's settings, and what the base and its problems need."""
    limits = protocol.filter
    task: dict[str, dict[str, Any]] = {
        "environment": {
            "id": "r3env/ReasoningGym-v0",
            "data": generated(run.spec.task, TRAINING_SEED, limits.training),
            "instruction": "",
            "reflection_guidance": REFLECTION_GUIDANCE,
            "options": {"partial_credit": False},
        },
        "rl_module": {"model": str(base / run.difficulty)},
        "env_runners": {"max_response_tokens": RESPONSE_LIMIT},
        "evaluation": {"data": generated(run.spec.task, HELD_OUT_SEED, limits.held_out)},
    }
    for section, values in protocol.settings.items():
        task[section] = {**task.get(section, {}), **values}
    return {"base": str(configs_folder() / DEFAULT_NAME), **task}
