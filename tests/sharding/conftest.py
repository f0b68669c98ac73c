"""Learners in processes of their own, without Ray, and algorithms with learners of RLlib's."""

from collections.abc import Iterator

import pytest

from algorithms.grpo.config import GRPOConfig
from tests.own_ray import own_ray

from .group import Group


@pytest.fixture(scope="package")
def group() -> Iterator[Group]:
    group = Group()
    yield group
    group.close()


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture
def config(ray_session: None) -> GRPOConfig:
    return small_config()


@pytest.fixture(scope="module")
def module_config(ray_session: None) -> GRPOConfig:
    return small_config()


def small_config() -> GRPOConfig:
    """The embedded model and task at a few seconds a run."""
    return (
        GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .env_runners(max_response_tokens=32)
        .learners(num_cpus_per_learner=0.5)
        .training(lr=1e-4, group_size=4, queries_per_step=4)
        .reward(length_bonus=0.0)
        .evaluation(samples=1, k=[1])
        .debugging(seed=3)
    )
