"""The training script as a user starts it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.s3_server import server  # noqa: F401  a fixture

SMALL = [
    "run.steps=3",
    "run.seed=4",
    "run.checkpoint_every=1",
    "training.queries_per_step=4",
    "training.group_size=4",
    "training.warmup_steps=0",
    "evaluation.samples=2",
    "evaluation.k=[1,2]",
    "evaluation.limit=6",
    "evaluation.interval=2",
    "reflection.min_attempts=1",
    "reflection.threshold=1",
    "reflection.max_share=0.5",
]
# Numbers that the clock has a part in.
TIMED = ("time/", "throughput/", "run/wall_s")
COUNTED = "throughput/generated_tokens"


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    def make(*arguments: str, algorithm: str = "r3_grpo") -> list[str]:
        return [sys.executable, "-m", f"algorithms.{algorithm}", *arguments]

    return make


@pytest.fixture(scope="session")
def surroundings() -> dict[str, str]:
    """Environment variables: this checkout, and no Ray but the script's own."""
    checkout = str(Path(__file__).parents[2])
    return {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": checkout}


@pytest.fixture(scope="session")
def run_command(command, surroundings) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, algorithm: str = "r3_grpo") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments, algorithm=algorithm), env=surroundings, capture_output=True, text=True, timeout=1800
        )

    return run


@pytest.fixture(scope="session")
def finished_run(run_command, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run of three steps that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs")
    process = run_command(*SMALL, f"run.dir={folder}", "run.name=whole")
    assert process.returncode == 0, process.stderr
    return folder / "whole", process


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key == COUNTED or not key.startswith(TIMED)}
