"""Two real vLLM actors whose weights change under running responses."""

import os
import signal

import pytest
import ray

from .conftest import two_runners

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

OPTIONS = {"max_model_len": 128, "enforce_eager": True}
QUERIES = 16


def test_every_token_has_a_known_version_and_no_prompt_is_lost_under_sigkill(ray_session):
    algorithm = (
        two_runners()
        .env_runners(engine="vllm", max_num_seqs=32, vllm=OPTIONS, dtype="float32")
        .env_runners(timeout_s=120.0)
        .training(lr=1e-4, group_size=8, queries_per_step=QUERIES, max_off_policy_steps=2)
        .build_algo()
    )
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
