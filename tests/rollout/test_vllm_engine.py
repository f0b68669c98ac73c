"""vLLM itself: the trainer's distribution, before and after new weights, and through Ray actors."""

import copy

import numpy as np
import pytest
import torch

from algorithms.rollout.engines.base import FinishReason, GenerationRequest
from algorithms.rollout.types import Sampling

from .conftest import VLLM_OPTIONS
from .full_forward import logprobs

pytestmark = pytest.mark.vllm

LIMIT = 48


def requests_of(prompts, sampling=None, repeats=3):
    sampling = sampling or Sampling(1.0, 1.0, LIMIT)
    return [
        GenerationRequest(prompt, 2**63 + seed, sampling)
        for seed, prompt in enumerate(prompt for prompt in prompts for _ in range(repeats))
    ]


def tokens_of(completions):
    return [completion.tokens.tolist() for completion in completions]


def largest_gap(policy, requests, completions):
    return max(
        np.abs(c.logprobs - logprobs(policy, r.tokens, c.tokens, r.sampling.temperature)).max()
        for r, c in zip(requests, completions, strict=True)
    )


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_are_the_trainers(vllm_engine, policy, prompts, temperature):
    requests = requests_of(prompts, Sampling(temperature, 1.0, LIMIT))
    assert largest_gap(policy, requests, vllm_engine.generate(requests)) < 1e-3


def test_a_seed_draws_the_same_response_again_and_another_seed_another(vllm_engine, prompts):
    requests = requests_of(prompts, repeats=4)
    together = tokens_of(vllm_engine.generate(requests))
    assert together == tokens_of(vllm_engine.generate(requests))
    assert together[:5] == tokens_of(vllm_engine.generate(requests[:5]))
    assert len({tuple(tokens) for tokens in together}) > len(prompts)


def test_a_response_ends_with_its_end_token_or_at_its_own_limit(vllm_engine, end_tokens, prompts):
    requests = [r for limit in (1, 7, LIMIT) for r in requests_of(prompts, Sampling(1.0, 1.0, limit), repeats=1)]
    completions = vllm_engine.generate(requests)
    for request, completion in zip(requests, completions, strict=True):
        *before, last = completion.tokens.tolist()
        assert not set(before) & set(end_tokens)
        stopped = completion.finish_reason is FinishReason.STOP
        assert stopped == (last in end_tokens)
        assert stopped or len(completion.tokens) == request.sampling.max_response_tokens
    assert {completion.finish_reason for completion in completions} == set(FinishReason)


def test_temperature_zero_is_what_the_transformers_engine_takes(vllm_engine, engine, prompts):
    requests = requests_of(prompts, Sampling(0.0, 1.0, LIMIT), repeats=1)
    assert tokens_of(vllm_engine.generate(requests)) == tokens_of(engine.generate(requests))


def test_new_weights_are_in_force_at_once_the_tied_head_included(vllm_engine, policy, prompts):
    requests = requests_of(prompts)
    generator = torch.Generator().manual_seed(0)
    changed = copy.deepcopy(policy)
    for version in (5, 6):
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        assert largest_gap(changed, requests, vllm_engine.generate(requests)) > 0.1
        vllm_engine.load_weights(changed.state_dict(), version)
        assert vllm_engine.weights_version == version
        assert largest_gap(changed, requests, vllm_engine.generate(requests)) < 1e-3
    vllm_engine.load_weights(policy.state_dict(), 7)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda weights: weights.pop("lm_head.weight"), "lm_head.weight"),
        (lambda weights: weights.update(more=torch.zeros(1)), "more"),
        (lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}), "model.norm.weight"),
    ],
)
def test_weights_of_another_model_are_refused_before_any_is_taken(vllm_engine, policy, prompts, spoil, named):
    requests = requests_of(prompts, repeats=1)
    before, version = tokens_of(vllm_engine.generate(requests)), vllm_engine.weights_version
    weights = {name: torch.zeros_like(tensor) for name, tensor in policy.state_dict().items()}
    spoil(weights)
    with pytest.raises(RuntimeError, match=named):
        vllm_engine.load_weights(weights, 99)
    assert vllm_engine.weights_version == version
    assert tokens_of(vllm_engine.generate(requests)) == before


def test_prompts_that_do_not_fit_into_a_step_wait_for_the_next(vllm_engine, policy, prompts):
    tokens = np.concatenate(prompts)
    long = [GenerationRequest(np.roll(np.resize(tokens, 200), i), i, Sampling(1.0, 1.0, 12)) for i in range(8)]
    assert len(long) * 200 > VLLM_OPTIONS["max_num_batched_tokens"] > 2 * 200
    assert largest_gap(policy, long, vllm_engine.generate(long)) < 1e-3


def test_the_context_is_what_the_engine_was_started_with(vllm_engine):
    assert vllm_engine.context_length == VLLM_OPTIONS["max_model_len"]


def two_vllm_actors():
    """Both ends in float32, also where CUDA makes bfloat16 the default: they differ by rounding alone."""
    from algorithms.grpo.config import GRPOConfig

    return (
        GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model="embedded:tiny", dtype="float32")
        .env_runners(
            engine="vllm",
            num_env_runners=2,
            num_cpus_per_env_runner=0.5,
            num_gpus_per_env_runner=0.4 if torch.cuda.is_available() else 0,
            num_threads=1,
            max_num_seqs=8,
            max_response_tokens=LIMIT,
            vllm=VLLM_OPTIONS,
            dtype="float32",
        )
        .learners(num_gpus_per_learner=0)  # the engines have the GPU to themselves
        .training(lr=1e-3, group_size=4, queries_per_step=6)
        .evaluation(data="embedded:heldout", samples=1, k=[1], limit=4)
    )


def test_three_steps_through_two_vllm_actors(short_run_ray):
    algorithm = two_vllm_actors().build_algo()
    try:
        versions = []
        for _ in range(3):
            algorithm.train()
            assert algorithm.batch.record["rollout/engine"] == "vllm"
            assert algorithm.batch.record["rollout/prompts_completed"] == 6
            assert 0 < algorithm.batch.record["policy/logp_mismatch_max"] < 1e-3
            versions.append(algorithm.batch.groups[0].samples[0].rollout.weights_version)
        assert versions == sorted(set(versions))
        held = algorithm.env_runner_group.foreach_env_runner("get_state", local_env_runner=False)
        assert len(held) == 2 and held[0] == held[1], "both have been sent the latest weights"
        assert 0 <= algorithm.evaluate()["pass@1"] <= 1
    finally:
        algorithm.stop()
