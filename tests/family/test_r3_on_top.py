"""R³'s mechanisms act on top of every member, in whole steps."""

import math

import numpy as np
import pytest

from algorithms.r3_grpo.config import R3GRPOConfig
from tests.hand_made import small_pool

from .conftest import preset


@pytest.fixture
def pool(tmp_path):
    """Five problems: every query comes back each step."""
    return small_pool(tmp_path, 5)


@pytest.mark.parametrize("member", ["dr_grpo", "gspo", "cispo", "rloo"])
def test_replay_adds_what_a_group_lacks_and_it_is_trained_on(build, pool, member):
    algorithm = build(
        preset(
            member,
            f"environment.data={pool}",
            "training.queries_per_step=5",
            "training.group_size=4",
            "training.minibatches=1",
            "env_runners.max_response_tokens=40",
            "reflection.enabled=false",
            config_class=R3GRPOConfig,
        )
    )
    mixed = []
    for _ in range(4):
        algorithm.train()
        assert (
            math.isfinite(algorithm.batch.record["policy/loss"]) and algorithm.batch.record["policy/skipped_steps"] == 0
        )
        mixed += [group for group in algorithm.batch.groups if any(sample.replayed for sample in group.samples)]
    assert mixed
    for group in mixed:
        rewards = np.array([sample.training_reward for sample in group.samples])
        advantages = np.array([sample.advantage for sample in group.samples])
        size, distance = len(rewards), rewards - rewards.mean()
        expected = {"dr_grpo": distance, "rloo": distance * size / (size - 1)}
        np.testing.assert_allclose(advantages, expected.get(member, distance / (rewards.std() + 1e-4)), atol=1e-9)
        assert all(np.abs(s.old_logprobs).max() > 0 for s in group.samples if s.replayed)
