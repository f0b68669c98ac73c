"""A Ray for these tests, and the command line with everything small."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.own_ray import own_ray

SMALL = (
    "run.steps=2",
    "rl_module.model=embedded:tiny",
    "env_runners.max_response_tokens=12",
    "training.group_size=2",
    "training.queries_per_step=3",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.limit=3",
)


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    with own_ray(4):
        yield


@pytest.fixture
def small_run(tmp_path: Path) -> list[str]:
    """Settings of a run of two steps in `tmp_path/run`."""
    return [f"run.dir={tmp_path}", "run.name=run", *SMALL]


@pytest.fixture
def metrics(tmp_path: Path) -> Any:
    """Reads the rows of `metrics.jsonl`."""
    return lambda: [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
