"""The GPU benchmark trains on rewards that give gradients, and says so when they do not."""

import math

import pytest

from benchmarks.gpu_steps.training import why_void
from benchmarks.random_rewards import RandomRewards


def scores(seed, responses):
    environment = RandomRewards(reward_seed=seed, data="embedded:train")
    query = next(iter(environment.queries.values()))
    return [environment.reward(query, environment.verify(query, response)) for response in responses]


def test_random_rewards_are_a_function_of_seed_and_response():
    responses = [f"nonsense {index}" for index in range(200)]
    assert scores(0, responses) == scores(0, responses) != scores(1, responses)
    assert len(set(scores(0, responses))) == 200
    assert 0.4 < sum(scores(0, responses)) / 200 < 0.6


@pytest.mark.parametrize("norm", [0.0, math.nan, math.inf])
def test_a_step_without_a_gradient_makes_the_measurement_void(norm):
    assert why_void([{"grad_norm": 0.3}]) == ""
    assert "void: gradient norm" in why_void([{"grad_norm": 0.3}, {"grad_norm": norm}])
