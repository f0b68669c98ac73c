"""Two real vLLM actors whose weights change under running responses."""

import os
import signal
import statistics

import numpy as np
import pytest
import ray

from .conftest import two_runners

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

OPTIONS = {"max_model_len": 128, "enforce_eager": True}
QUERIES, GROUP = 16, 8


def on_vllm(steps_ahead, seed=3, runners=2):
    return (
        two_runners()
        .env_runners(num_env_runners=runners, engine="vllm", max_num_seqs=32, vllm=OPTIONS, dtype="float32")
        .env_runners(timeout_s=120.0)
        .training(lr=1e-4, group_size=GROUP, queries_per_step=QUERIES, max_off_policy_steps=steps_ahead)
        .debugging(seed=seed)
        .build_algo()
    )


def test_every_token_has_a_known_version_and_no_prompt_is_lost_under_sigkill(ray_session):
    algorithm = on_vllm(2)
    pushed, mixed = [algorithm.rollout_workers.version], []
    try:
        for step in range(6):
            if step == 2:
                runner = algorithm.rollout_workers.supervisor.runners[1]
                os.kill(ray.get(runner.handle.get_pid.remote()), signal.SIGKILL)
            algorithm.train()
            record = algorithm.batch.record
            assert record["rollout/prompts_completed"] == record["rollout/prompts_expected"] == QUERIES
            for sample in (sample for group in algorithm.batch.rolled_out for sample in group.samples):
                spans = sample.rollout.version_spans
                assert {version for version, _ in spans} <= set(pushed[-3:])
                assert sum(tokens for _, tokens in spans) == sample.rollout.response_length
                assert [version for version, _ in spans] == sorted({version for version, _ in spans})
            assert record["rollout/policy_lag"] <= 2
            mixed.append(record["rollout/mixed_policies"])
            pushed.append(algorithm.rollout_workers.version)
        assert max(mixed) > 0, "some responses went on under new weights"
    finally:
        algorithm.stop()


def test_rewards_grow_as_without_a_lag(ray_session):
    """At as many samples, over three seeds; the noise is that of the seeds and of the answers drawn."""
    steps, last = 10, 5
    reached = {}
    for steps_ahead in (0, 2):
        for seed in (1, 2, 3):
            algorithm = on_vllm(steps_ahead, seed, runners=1)  # an engine takes longer to start than to train
            rewards = []
            for _ in range(steps):
                algorithm.train()
                rewards.append(np.mean([s.rollout.correct for s in algorithm.batch.fresh]))
            algorithm.stop()
            reached.setdefault(steps_ahead, []).append(float(np.mean(rewards[-last:])))
            print(steps_ahead, seed, float(np.mean(rewards[:2])), reached[steps_ahead][-1])
    drawn = last * QUERIES  # answers to one query are alike: count queries
    share = statistics.fmean([*reached[0], *reached[2]])
    noise = 2 * share * (1 - share) / (3 * drawn) + sum(statistics.variance(each) for each in reached.values()) / 3
    assert abs(statistics.fmean(reached[2]) - statistics.fmean(reached[0])) < 2.5 * noise**0.5
