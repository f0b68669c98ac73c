"""One Ray for the folder, an algorithm with two runners, and the requests that it plays."""

from collections.abc import Iterator

import pytest

from algorithms.grpo.config import GRPOConfig
from algorithms.rollout.types import Prompt, Request, Sampling, Split
from algorithms.utils.rng import RngStream, request_seeds
from tests.own_ray import own_ray

TIMEOUT_S = 40.0


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    with own_ray():
        yield


def two_runners() -> GRPOConfig:
    """The embedded model through two actors, a few seconds a run."""
    return (
        GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model="embedded:tiny")
        .env_runners(
            num_env_runners=2, max_response_tokens=48, num_cpus_per_env_runner=0.5, timeout_s=TIMEOUT_S, num_threads=1
        )
        .training(lr=1e-4, group_size=4, queries_per_step=6)
        .reward(length_bonus=0.0)
        .evaluation(data="embedded:heldout", samples=1, k=[1], limit=4)
        .debugging(seed=3)
    )


@pytest.fixture
def config(ray_session) -> GRPOConfig:
    return two_runners()


def requests_of(algorithm, count):
    uids = algorithm.uids(Split.TRAIN)
    seeds = request_seeds(1, 0, RngStream.ROLLOUT, count)
    return [Request(i, Prompt(uids[i % len(uids)]), i, seed, Sampling(1.0, 1.0, 48)) for i, seed in enumerate(seeds)]
