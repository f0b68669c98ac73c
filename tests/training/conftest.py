"""A Ray for the whole folder, and configurations that train the embedded model for a few steps."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from algorithms.grpo.config import GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout import episode_runner
from benchmarks.embedded_model.arithmetic import REFLECTION_GUIDANCE
from tests.hand_made import small_pool
from tests.own_ray import own_ray

RESPONSE_LIMIT = 48


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: which turns share a batch in this process must not depend on it."""
    monkeypatch.setattr(episode_runner, "PATIENCE_S", math.inf)


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    with own_ray():
        yield


def configure(config: Any) -> Any:
    """The quickstart's task at a few seconds a run."""
    return (
        config.environment(
            "r3env/Math-v0",
            env_config={
                "data": "embedded:train",
                "instruction": "",
                "reflection_guidance": REFLECTION_GUIDANCE,
            },
        )
        .rl_module(model="embedded:tiny")
        .env_runners(max_response_tokens=RESPONSE_LIMIT, num_cpus_per_env_runner=0.5)
        .learners(num_cpus_per_learner=0.5)
        .training(lr=1e-4, group_size=4, queries_per_step=6, minibatches=2)
        .reward(length_bonus=0.0)
        .evaluation(data="embedded:heldout", samples=2, k=[1, 2], limit=8)
        .debugging(seed=3)
    )


@pytest.fixture
def grpo_config(ray_session: None) -> GRPOConfig:
    return configure(GRPOConfig())


@pytest.fixture
def r3_config(ray_session: None) -> R3GRPOConfig:
    return configure(R3GRPOConfig())


@pytest.fixture(name="small_pool")
def small_pool_fixture(tmp_path: Any) -> str:
    """Six training problems: every query comes back each step."""
    return small_pool(tmp_path, 6)
