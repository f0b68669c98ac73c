"""The runs of an ablation, one for every arm and seed, with complete settings before any starts."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from algorithms.config.errors import ConfigError, shown
from algorithms.config.files import algorithm_of, configs_folder, to_yaml
from algorithms.config.loading import DEFAULT_NAME, load
from algorithms.config.sections import RunSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.run_directory import RunDirectory
from benchmarks.ablation.arms import Arm


class R3ArmConfig(R3GRPOConfig):
    """R³ with the rewards that all arms have: the task's own, where it sets none those of GRPO."""

    SECTIONS = GRPOConfig.SECTIONS


CONFIGS: dict[str, type[GRPOConfig]] = {"grpo": GRPOConfig, "r3_grpo": R3ArmConfig}
# Dozens of runs, each of which may be killed: small folders that can be gone on with.
DEFAULTS = (
    "run.checkpoint_every=20",
    "run.keep_checkpoints=1",
    "run.best_metric=null",
    "run.log_conversations=0",
    "run.save_rollouts=false",
)
# How fast and how much is learned from a step is the task's affair, the same for all arms; a method's file is about the
# rest. An arm that shall have its own gets it by name.
TASKS_OWN = tuple(
    f"training.{key}" for key in ("lr", "warmup_steps", "group_size", "queries_per_step", "minibatches", "weight_decay")
)
# Of section `run`, these bear on what is learned.
_OF_RUN = ("seed", "steps", "max_generated_tokens")


@dataclass(frozen=True)
class Task:
    """What all arms have in common.

    Args:
        files: configuration files, a later one wins; none for the quickstart.
        overrides: settings of the command line; those of a mechanism go to the arms that have it.
        tokens: each run ends with the step that brings its generated tokens to this number; 0: with `run.steps`.
    """

    files: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()
    tokens: int = 0


@dataclass(frozen=True)
class Job:
    """One run: an arm with a seed.

    Args:
        out: the ablation's folder.
        run: section `run`.
        sections: the other sections, complete.
        yaml: the whole configuration as a file.
        cpus: that its process and actors take.
        gpus: likewise.
    """

    arm: str
    seed: int
    algorithm: str
    out: Path
    run: RunSettings
    sections: dict[str, Any]
    yaml: str
    cpus: float
    gpus: float

    @property
    def name(self) -> str:
        """The run's name in the ablation."""
        return f"{self.arm}-{self.seed}"

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self.out / self.name

    @property
    def settings_file(self) -> Path:
        """The configuration that it is started with."""
        return self.out / "settings" / f"{self.name}.yaml"

    @property
    def log(self) -> Path:
        """What the training script printed."""
        return self.out / "logs" / f"{self.name}.log"

    @property
    def settings_hash(self) -> str:
        """Twelve digits that are the same for two runs that differ at most in the seed."""
        settings = {**relevant(self.algorithm, self.run, self.sections), "run.seed": None}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def relevant(algorithm: str, run: RunSettings, sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that affect what a run learns, by their dotted names."""
    flat = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    return {"algorithm": algorithm, **{f"run.{key}": getattr(run, key) for key in _OF_RUN}, **flat}


def plan(arms: Sequence[Arm], seeds: Iterable[int], task: Task, out: Path) -> list[Job]:
    """Return all runs, ordered by seed: every arm gets a seed before any gets the next.

    Raises:
        ConfigError: a setting that is wrong for one of the arms, which the line names.
    """
    configured = [(arm, *_configured(arm, task)) for arm in arms]
    return [_job(arm, seed, config, run, out) for seed in seeds for arm, config, run in configured]


def _job(arm: Arm, seed: int, config: GRPOConfig, run: RunSettings, out: Path) -> Job:
    from algorithms.preflight.resources import reserved

    run = run.changed("run", {"name": f"{arm.name}-{seed}", "dir": str(out), "seed": seed})
    resources = reserved(config)
    return Job(
        arm=arm.name,
        seed=seed,
        algorithm=arm.algorithm,
        out=out,
        run=run,
        sections=config.to_sections(),
        yaml=to_yaml(config, run, algorithm=arm.algorithm),
        cpus=1 + resources.cpus,
        gpus=resources.gpus,
    )


def _configured(arm: Arm, task: Task) -> tuple[GRPOConfig, RunSettings]:
    files = task.files or (configs_folder() / DEFAULT_NAME,)
    config_class = CONFIGS[arm.algorithm]
    common = [*DEFAULTS, *_for(config_class, task.overrides)]
    try:
        kept = _tasks_own(load(files, common, config_class)[0]) if arm.method else []
        methods = [configs_folder() / arm.method] if arm.method else []
        budget = [f"run.max_generated_tokens={task.tokens}"] if task.tokens else []
        config, run = load([*files, *methods], [*common, *kept, *budget, *arm.settings], config_class)
        _check_measured(config)
    except ConfigError as error:
        raise ConfigError(f"arm {arm.name}: {error}") from None
    if task.tokens and not any(text.startswith("run.steps=") for text in (*task.overrides, *arm.settings)):
        run = run.changed("run", {"steps": _steps_that_suffice(config, task.tokens)})
    return config, run


def _check_measured(config: GRPOConfig) -> None:
    ks = config.evaluation_settings.k
    if 1 not in ks:
        fix = ",".join(map(str, [1, *ks]))
        raise ConfigError(f"evaluation.k: {ks} must contain 1: arms are compared by pass@1; fix: evaluation.k=[{fix}]")


def _steps_that_suffice(config: GRPOConfig, tokens: int) -> int:
    """Return how many steps surely reach the tokens: no response has fewer than one."""
    training = config.training_settings
    return math.ceil(tokens / (training.queries_per_step * training.group_size))


def _for(config_class: type[GRPOConfig], overrides: Sequence[str]) -> list[str]:
    elsewhere = R3GRPOConfig.class_sections().keys() - config_class.class_sections().keys()
    return [text for text in overrides if text.partition(".")[0] not in elsewhere]


def _tasks_own(config: GRPOConfig) -> list[str]:
    training = config.training_settings.model_dump()
    return [f"{name}={training[name.partition('.')[2]]}" for name in TASKS_OWN]


class State(Enum):
    """The state of a run."""

    MISSING = "missing"
    BEGUN = "begun"
    FINISHED = "finished"


def state(job: Job) -> State:
    """Read the state from the run's folder.

    Raises:
        ConfigError: the folder is not a run.
    """
    if not job.folder.exists():
        return State.MISSING
    try:
        directory = RunDirectory.open(job.folder)
    except ValueError as error:
        raise ConfigError(f"{error}; fix: delete it, or --out another folder") from error
    return State.FINISHED if directory.summary_file.is_file() else State.BEGUN


def refuse_others(jobs: Iterable[Job]) -> None:
    """Check that runs which were begun have the settings that are requested now.

    Raises:
        ConfigError: one line with the run and the settings that differ.
    """
    for job in jobs:
        if state(job) is not State.MISSING and (found := differences(job)):
            raise ConfigError(
                f"{job.folder}: was trained with other settings: {'; '.join(found)}; "
                "fix: ask for these, delete the folder, or --out another one"
            )


def differences(job: Job) -> list[str]:
    """List the stored run's settings that affect what it learns and differ from `job`'s, each with both values."""
    file = job.folder / "config.yaml"
    algorithm = algorithm_of(file) or job.algorithm
    if algorithm != job.algorithm:
        return [f"algorithm {algorithm}, asked for {job.algorithm}"]
    config, run = load(file, [], CONFIGS[algorithm])
    there = relevant(algorithm, run, config.to_sections())
    asked = relevant(job.algorithm, job.run, job.sections)
    return [
        f"{name}={shown(there.get(name))}, asked for {shown(asked.get(name))}"
        for name in {**there, **asked}
        if there.get(name) != asked.get(name)
    ]
