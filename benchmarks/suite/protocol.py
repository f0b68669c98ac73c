"""The registered protocol: the runs and how they are judged, fixed by a hash before the first test run."""

import hashlib
from datetime import date
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from algorithms.config.errors import ConfigError

FOLDER = Path(__file__).parent
FILE = FOLDER / "protocol.yaml"
SCREENED = FOLDER / "tasks.jsonl"
_DOCS = FOLDER.parent.parent / "docs"
REFERENCE = "r3"  # the arm that the others are compared with
RECORDS, FIGURES = _DOCS / "evidence" / "suite.jsonl", _DOCS / "images"

Difficulty = Literal["easy", "medium", "blind"]
Skill = Literal["none", "own_failures"]
Phase = Literal["sweep", "test"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Filter(_Part):
    """Which tasks are in: no judgment, only numbers.

    Args:
        levels: of a task's curriculum that are tried, in this order, when it is not in with its own defaults.
        prompt_tokens: of the longest prompt drawn; text that all prompts of a task share is one token a piece.
        answer_characters: of the longest answer.
        guess_share: of the most frequent answer, at most.
        training: problems to train on.
        held_out: problems to evaluate on; none of them among the former.
    """

    levels: tuple[int, ...]
    prompt_tokens: int
    answer_characters: int
    guess_share: float
    training: int
    held_out: int


class Recipe(_Part):
    """How bases are made: supervised learning on answers, stopped at a pass@1.

    Args:
        steps: of supervised learning at most; a task that is not at `learnable` by then is left out.
        learnable: pass@1 that it has to reach.
        hopeless: (supervised step, pass@1): a task below it by then is left out at once.
        bands: pass@1 between which a difficulty's checkpoint lies; the first one in it is taken.
        interval: supervised steps between measurements.
        problems: development problems that each is measured on, one answer each.
        second_turns: share of examples that are second turns, where the base is given that skill.
    """

    steps: int
    learnable: float
    hopeless: tuple[int, float]
    bands: dict[Difficulty, tuple[float, float]]
    interval: int
    problems: int
    second_turns: float


class ArmSettings(_Part):
    """One arm.

    Args:
        arm: of `benchmarks.ablation.arms`.
        lr: its learning rate, frozen after the sweep; None before.
        settings: overrides beside the task's.
    """

    arm: str
    lr: float | None = None
    settings: tuple[str, ...] = ()


class Sweep(_Part):
    """The bases of the sweep.

    Args:
        difficulty: at which all are taken.
        skills: of each development task's base, the first of its kind.
    """

    difficulty: Difficulty
    skills: tuple[Skill, ...]


class Protocol(_Part):
    """The whole file.

    Args:
        registered: the date from which on it is not changed but by `changes`; None: a draft, no test run begins.
        tasks: how many of the filter's tasks, in its order, are for development and for the test.
        bases: how many of each kind a task gets.
        difficulties: at which every base is taken.
        arms: by the name in tables.
        rates: learning rates of the sweep.
        sweep: where it is made.
        tokens: generated tokens of a run.
        settings: of every run.
        predictions: what is expected, to be answered one by one.
        excluded: TASK:SKILL:NUMBER:DIFFICULTY of a base that has no checkpoint there, and why.
        changes: what was changed after registration, with date and reason.
    """

    registered: date | None
    filter: Filter
    tasks: dict[Literal["development", "test"], int]
    recipe: Recipe
    bases: dict[Skill, int]
    difficulties: tuple[Difficulty, ...]
    arms: dict[str, ArmSettings]
    rates: tuple[float, ...]
    sweep: Sweep
    tokens: int = Field(gt=0)
    settings: dict[str, dict[str, object]]
    predictions: tuple[str, ...]
    excluded: dict[str, str] = {}
    changes: tuple[str, ...] = ()


def read(file: Path = FILE) -> tuple[Protocol, str]:
    """Read the protocol, and the SHA-256 of its bytes that every record carries.

    Raises:
        ConfigError: it is no protocol; the line says where.
    """
    content = file.read_bytes()
    try:
        return Protocol.model_validate(yaml.safe_load(content)), hashlib.sha256(content).hexdigest()
    except ValueError as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}; fix: see benchmarks/suite/protocol.py") from error
