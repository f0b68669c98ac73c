"""Two steps of a real model, in each of the ways that it can be sampled from and trained."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from algorithms.train.checkpoints import save_checkpoint
from tests.own_learners import policy_state

pytestmark = pytest.mark.real

ROUNDING = 1e-3  # of engine and learner, in nats


def two_steps(algorithm):
    """The records of two steps; the engine samples from the learner's policy in both."""
    records = []
    for _ in range(2):
        algorithm.train()
        records.append(algorithm.batch.record)
        assert records[-1]["rollout/environment_errors"] == 0
        assert 0 < records[-1]["policy/logp_mismatch_max"] < ROUNDING
        assert records[-1]["policy/grad_norm"] > 0
    return records


def weights_of(algorithm):
    return policy_state(algorithm.learner_group)[1]["default_policy"]


@pytest.mark.slow
def test_an_adapter_is_trained_and_saved_merged(config, build, real_model, scratch):
    algorithm = build(config.rl_module(lora_rank=4, lora_alpha=8).training(lr=1e-3))
    two_steps(algorithm)
    saved = save_checkpoint(algorithm, scratch)
    merged, base = weights_of(algorithm), load_file(real_model / "model.safetensors")
    changed = {name for name, tensor in base.items() if not torch.equal(tensor, merged[name])}
    assert changed and all("_proj" in name for name in changed)
    plain = AutoModelForCausalLM.from_pretrained(saved / "model", dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, merged[name]) for name, tensor in plain.items())


@pytest.mark.slow
def test_shards_on_two_learners_are_trained_as_one_learner_is(config, build):
    records, trained = [], []
    for settings in ({}, {"num_learners": 2, "sharding": "fsdp"}):
        algorithm = build(config.copy(copy_frozen=False).learners(**settings))
        records.append(two_steps(algorithm))
        trained.append(weights_of(algorithm))
        algorithm.stop()
    for one, two in zip(*records, strict=True):
        for name in ("reward/mean", "policy/grad_norm", "policy/loss"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name
    one, two = trained
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


@pytest.mark.slow
def test_rollouts_ahead_are_of_policies_that_are_known(config, build):
    algorithm = build(config.env_runners(num_env_runners=1, num_threads=1).training(max_off_policy_steps=2))
    pushed = [algorithm.rollout_workers.version]
    for step in range(3):
        algorithm.train()
        rollouts = [sample.rollout for group in algorithm.batch.rolled_out for sample in group.samples]
        lags = [step - pushed.index(version) for rollout in rollouts for version, _ in rollout.version_spans]
        assert 0 <= min(lags) and max(lags) <= min(step, 2)
        assert algorithm.batch.record["rollout/prompts_completed"] == 2
        pushed.append(algorithm.rollout_workers.version)
    assert max(lags) > 0


@pytest.mark.vllm
@pytest.mark.slow
def test_two_vllm_engines_sample_from_the_policy_that_is_trained(config, build):
    options = {"max_model_len": 128, "enforce_eager": True}
    runners = {"num_env_runners": 2, "engine": "vllm", "max_num_seqs": 8, "vllm": options, "num_threads": 1}
    algorithm = build(config.env_runners(**runners))
    first, second = two_steps(algorithm)
    assert first["rollout/engine"] == second["rollout/engine"] == "vllm"
    held = algorithm.env_runner_group.foreach_env_runner("get_state", local_env_runner=False)
    assert len(held) == 2 and held[0] == held[1]
