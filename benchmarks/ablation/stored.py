"""Finished and begun runs of an ablation, and whether they have the requested settings."""

from collections.abc import Iterable
from enum import Enum

from algorithms.config.errors import ConfigError, shown
from algorithms.config.files import algorithm_of
from algorithms.config.loading import load
from algorithms.train.run_directory import RunDirectory
from benchmarks.ablation.plan import CONFIGS, Job, relevant


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
