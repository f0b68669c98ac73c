"""Weights that change while responses run: which policy sampled which token, in the real engines."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithms.rollout.engines.base import GenerationRequest
from algorithms.rollout.types import Sampling
from r3env.envs.math import MathEnv

from .full_forward import logprobs
from .requests import requests_of

LIMIT = 48
FIRST = 100


@pytest.fixture(scope="module")
def policies(policy):
    """Four policies by version, each some way from the one before."""
    generator, found = torch.Generator().manual_seed(0), [policy]
    for _ in range(3):
        changed = copy.deepcopy(found[-1])
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        found.append(changed)
    return {FIRST + number: each for number, each in enumerate(found)}


@pytest.fixture
def streaming(vllm_engine, policies, policy):
    vllm_engine.load_weights(policy.state_dict(), FIRST)
    yield vllm_engine
    vllm_engine.abort(list(range(100)))
    vllm_engine.keeps_cache = False
    vllm_engine.load_weights(policy.state_dict(), 0)


def answered_through_switches(engine, prompts, policies, every=12):
    """Submit requests, the same prompts once more after a while, and change the weights on the way."""
    prompts = [*prompts, *prompts]
    requests = [GenerationRequest(prompt, 7 + i, Sampling(1.0, 1.0, LIMIT)) for i, prompt in enumerate(prompts)]
    half = len(requests) // 2
    for key, request in enumerate(requests[:half]):
        engine.submit(key, request)
    left, completions, steps = [version for version in policies if version != FIRST], {}, 0
    while engine.unfinished:
        completions.update(engine.step())
        steps += 1
        if steps == every + 1:
            for key, request in enumerate(requests[half:], half):
                engine.submit(key, request)
        if steps % every == 0 and left and engine.unfinished:
            version = left.pop(0)
            engine.load_weights(policies[version].state_dict(), version)
    assert not left
    return [(request, completions[key]) for key, request in enumerate(requests)]


def gaps_by_version(policies, answered):
    """Differences to the log-probs of the policy that each token is said to be of, by its number in the response."""
    gaps = []
    for request, completion in answered:
        start = 0
        for version, count in completion.versions:
            own = logprobs(policies[version], request.tokens, completion.tokens)[start : start + count]
            gaps.append((start, np.abs(own - completion.logprobs[start : start + count])))
            start += count
        assert start == len(completion.tokens)
    return gaps


@pytest.mark.vllm
def test_every_token_is_of_the_policy_that_it_says(streaming, prompts, policies):
    answered = answered_through_switches(streaming, prompts, policies)
    assert {version for _, each in answered for version, _ in each.versions} == set(policies)
    assert any(len(completion.versions) > 1 for _, completion in answered)
    assert max(gap.max() for _, gap in gaps_by_version(policies, answered)) < 1e-3


@pytest.mark.vllm
def test_a_kept_cache_is_of_the_old_weights_and_new_requests_do_not_see_it(streaming, prompts, policies):
    streaming.keeps_cache = True
    long = [np.resize(prompt, 160) for prompt in prompts]  # the cache finds whole blocks only
    answered = answered_through_switches(streaming, long, policies)
    gaps = gaps_by_version(policies, answered)
    assert max(gap.max() for start, gap in gaps if start > 0) > 1e-2, "else this does not show what is kept"
    assert max(gap.max() for start, gap in gaps if start == 0) < 1e-3
    late = answered[len(answered) // 2 :]
    assert all(completion.versions[0][0] > FIRST for _, completion in late), "their prompts are in the cache"


@pytest.mark.vllm
def test_a_kept_cache_is_not_that_of_other_weights_whose_version_comes_again(streaming, prompts, policies):
    """In a process that takes up an older step, versions do."""
    streaming.keeps_cache = True
    prompt = np.resize(np.concatenate(prompts), 160).astype(np.int32)
    streaming.submit(0, GenerationRequest(prompts[0], 1, Sampling(2.0, 1.0, 96)))
    for key, policy in enumerate(list(policies.values())[1:3], 1):
        streaming.load_weights(policy.state_dict(), FIRST + 1)
        streaming.submit(key, GenerationRequest(prompt, 5, Sampling(1.0, 1.0, 8)))
        found = {}
        while key not in found:
            found.update(streaming.step())
        assert 0 not in found, "else nothing keeps the cache from being reset"
        expected = logprobs(policy, prompt, found[key].tokens)
        assert np.abs(expected - found[key].logprobs).max() < 1e-3


@pytest.mark.vllm
def test_what_ended_in_a_pause_and_is_withdrawn_after_it_is_not_reported(streaming, prompts):
    """On a GPU steps are under way when an engine pauses, and may end responses."""
    streaming.submit(0, GenerationRequest(prompts[0], 1, Sampling(1.0, 1.0, 2)))
    streaming.submit(1, GenerationRequest(prompts[1], 1, Sampling(1.0, 1.0, LIMIT)))
    while not streaming._early:  # what `_pause` does there
        streaming._early += streaming.llm.llm_engine.step()
    assert [output.request_id for output in streaming._early] == ["0"]
    streaming.abort([0])
    found = {}
    while streaming.unfinished:
        found.update(streaming.step())
    assert list(found) == [1]


@pytest.mark.vllm
def test_no_step_is_taken_with_weights_that_are_half_there(streaming, prompts, policy):
    streaming.submit(0, GenerationRequest(prompts[0], 1, Sampling(1.0, 1.0, LIMIT)))
    streaming.step()
    weights = policy.state_dict()
    streaming.start_weights({name: tuple(tensor.shape) for name, tensor in weights.items()})
    with pytest.raises(RuntimeError, match="being replaced"):
        streaming.step()
    streaming.add_weights({"tensors": list(weights.items())})
    streaming.finish_weights(FIRST + 1)
    while streaming.unfinished:
        (_, completion), *_ = streaming.step() or [(None, None)]
    assert completion.versions[0] == (FIRST, 1)


def test_an_episode_names_the_oldest_weights_and_all_of_them(engine, tokenizer, runner_with):
    """Between two turns the embedded engine takes weights as well; a batch that decodes is of one version."""
    runner = runner_with(MathEnv, data="embedded:train", instruction="", max_turns=2)
    runner.add(
        requests_of(["train-000", "train-001"], sampling=replace(requests_of(["x"])[0].sampling, temperature=2.0))
    )
    rollouts, version = [], 0
    state = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    while runner.unfinished:
        rollouts += runner.advance(0.0)
        version += 1
        engine.load_weights(state, version)
    engine.weights_version = 0
    assert any(len(rollout.versions) == 2 for rollout in rollouts)
    for rollout in rollouts:
        spans = rollout.version_spans
        assert rollout.weights_version == min(version for version, _ in spans)
        assert sum(count for _, count in spans) == rollout.response_length
