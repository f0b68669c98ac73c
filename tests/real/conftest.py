"""The real model on a task of seconds: few prompts, short responses, two steps."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from algorithms.grpo.config import GRPOConfig
from tests.own_ray import own_ray

RESPONSE_LIMIT = 16
TOPICS = ("bees", "rain", "bread", "trains")


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture(scope="package")
def problems(tmp_path_factory) -> str:
    """A file of prompts."""
    file = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    rows = [{"problem": f"Write a short text about {topic}.", "answer": "-"} for topic in TOPICS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for gigabytes, which pytest would keep."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture
def config(real_model: Path, problems: str, ray_session: None) -> GRPOConfig:
    options = {"data": problems, "instruction": "", "reward": "tests.real.rewards:variety"}
    return (
        GRPOConfig()
        .environment("r3env/Function-v0", env_config=options)
        .rl_module(model=str(real_model), dtype="float32")
        .env_runners(max_response_tokens=RESPONSE_LIMIT, num_cpus_per_env_runner=0.5, dtype="float32")
        .learners(num_cpus_per_learner=0.5)
        .training(lr=1e-5, warmup_steps=0, group_size=2, queries_per_step=2)
        .reward(length_bonus=0.0)
        .evaluation(data=None)
        .debugging(seed=3)
    )
