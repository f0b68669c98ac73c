"""Rollouts in int8 by vLLM itself: what it computes, after each update too, and what training measures of it."""

import copy

import numpy as np
import pytest
import torch

from algorithms.config.errors import ConfigError
from algorithms.config.placement import INT8

from .conftest import VLLM_OPTIONS
from .full_forward import logprobs
from .test_vllm_engine import requests_of, two_vllm_actors

OPTIONS = VLLM_OPTIONS | {"quantization": INT8}


def rounded(values, largest=127):
    """The nearest multiples of each row's scale, whose largest magnitude is exact."""
    scale = values.abs().amax(-1, keepdim=True) / largest
    return (values / scale).round() * scale


def in_int8(policy):
    """The same model in float32 whose linear layers round their weights, and each token of what they get."""
    from algorithms.rollout.weight_sync.vllm_int8 import largest_code  # vLLM is imported once its engine was made

    rounds = copy.deepcopy(policy)
    for name, layer in rounds.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.weight.data = rounded(layer.weight.data, largest_code())
            layer.register_forward_pre_hook(lambda module, inputs: (rounded(inputs[0]),))
    return rounds


def mean_gap(policy, requests, completions):
    pairs = zip(requests, completions, strict=True)
    return np.concatenate([np.abs(c.logprobs - logprobs(policy, r.tokens, c.tokens)) for r, c in pairs]).mean()


def one_runner():
    """Its engine has a process of its own: vLLM takes down what engines of one process share when one of them ends."""
    return two_vllm_actors().env_runners(num_env_runners=1, vllm=OPTIONS).training(importance_cap=1.001)


@pytest.fixture(scope="module")
def algorithm(short_run_ray):
    algorithm = one_runner().build_algo()
    yield algorithm
    algorithm.stop()


@pytest.mark.vllm
def test_training_measures_the_mismatch_and_caps_the_weights(algorithm):
    for _ in range(2):
        algorithm.train()
        record = algorithm.batch.record
        assert 1e-3 < record["policy/logp_mismatch_max"] < 0.5
        assert record["policy/is_bounded"] > 0
        assert np.isfinite(record["policy/loss"])


@pytest.mark.vllm
def test_the_engine_computes_in_int8_and_quantizes_each_update(algorithm, policy, prompts):
    runners, requests = algorithm.env_runner_group, requests_of(prompts)
    generator = torch.Generator().manual_seed(0)
    changed = copy.deepcopy(policy)
    for version in range(100, 103):
        weights = {name: tensor.clone() for name, tensor in changed.state_dict().items()}

        def answer(runner, weights=weights, version=version):
            runner.engine.load_weights(weights, version)
            return runner.engine.generate(requests)

        (completions,) = runners.foreach_env_runner(answer, local_env_runner=False)
        # A sum that is rounded otherwise may move an activation to the next code.
        assert mean_gap(in_int8(changed), requests, completions) < 0.2 * mean_gap(changed, requests, completions)
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)


def test_an_adapter_alone_brings_no_weights_to_quantize():
    config = one_runner().rl_module(lora_rank=4).env_runners(lora_weights="adapter")
    with pytest.raises(ConfigError, match=r"quantization: .*env_runners.lora_weights=merged"):
        config.validate()


def test_without_a_cap_the_rounded_policy_is_refused():
    with pytest.raises(ConfigError, match=r"quantization: .*training.importance_cap=2"):
        one_runner().training(importance_cap=0).validate()
