"""The transformers engine: the model's own distribution, drawn the same whatever shares the batch."""

import numpy as np
import pytest
import torch

from algorithms.rollout.engines.base import FinishReason, GenerationRequest
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.engines.transformers import TransformersEngine
from algorithms.rollout.types import Sampling

from .full_forward import distributions, logprobs

LIMIT = 48


def requests_of(prompts, *, repeats=1, sampling=None):
    sampling = sampling or Sampling(1.0, 1.0, LIMIT)
    return [
        GenerationRequest(prompt, seed, sampling)
        for seed, prompt in enumerate(prompt for prompt in prompts for _ in range(repeats))
    ]


def tokens_of(completions):
    return [completion.tokens.tolist() for completion in completions]


@pytest.fixture
def own_engine(model_folder, end_tokens):
    """An engine whose weights a test may change."""
    return TransformersEngine(model=model_folder, dtype="float32", max_num_seqs=64, eos_token_ids=end_tokens)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_log_probs_are_those_of_a_plain_forward_at_the_temperature(engine, policy, prompts, temperature):
    requests = requests_of(prompts, repeats=3, sampling=Sampling(temperature, 1.0, LIMIT))
    for request, completion in zip(requests, engine.generate(requests), strict=True):
        expected = logprobs(policy, request.tokens, completion.tokens, temperature)
        assert np.abs(completion.logprobs - expected).max() < 1e-4


def test_a_request_draws_the_same_alone_in_a_batch_and_in_another_order(engine, prompts):
    requests = requests_of(prompts, repeats=4)
    together = tokens_of(engine.generate(requests))
    alone = [tokens_of(engine.generate([request]))[0] for request in requests]
    order = np.random.default_rng(0).permutation(len(requests))
    shuffled = tokens_of(engine.generate([requests[i] for i in order]))
    assert together == alone
    assert [together[i] for i in order] == shuffled
    assert len({tuple(tokens) for tokens in together}) > len(prompts)


@pytest.mark.parametrize("max_num_seqs", [1, 5, 32])
def test_how_many_rows_decode_at_once_changes_nothing(engine, own_engine, prompts, max_num_seqs):
    requests = requests_of(prompts, repeats=3)
    own_engine.max_num_seqs = max_num_seqs
    assert tokens_of(own_engine.generate(requests)) == tokens_of(engine.generate(requests))


def test_a_longer_limit_only_continues_the_response(engine, prompts):
    short = engine.generate(requests_of(prompts, sampling=Sampling(1.0, 1.0, 9)))
    long = engine.generate(requests_of(prompts))
    assert tokens_of(short) == [tokens[:9] for tokens in tokens_of(long)]


def test_a_response_ends_with_its_end_token_or_at_its_own_limit(engine, end_tokens, prompts):
    requests = [
        GenerationRequest(prompt, seed, Sampling(1.0, 1.0, limit))
        for seed, (prompt, limit) in enumerate((prompt, limit) for prompt in prompts for limit in (1, 7, 20, LIMIT))
    ]
    completions = engine.generate(requests)
    for request, completion in zip(requests, completions, strict=True):
        *before, last = completion.tokens.tolist()
        assert not set(before) & set(end_tokens)
        if completion.finish_reason is FinishReason.STOP:
            assert last in end_tokens
        else:
            assert last not in end_tokens and len(completion.tokens) == request.sampling.max_response_tokens
        assert len(completion.logprobs) == len(completion.tokens)
    assert {completion.finish_reason for completion in completions} == set(FinishReason)


def test_an_end_token_at_the_very_limit_is_a_stop(engine, prompts):
    (full,) = engine.generate([next(r for r in requests_of(prompts) if _stops(engine, r))])
    request = next(r for r in requests_of(prompts) if _stops(engine, r))
    exact = GenerationRequest(request.tokens, request.seed, Sampling(1.0, 1.0, len(full.tokens)))
    (completion,) = engine.generate([exact])
    assert completion.tokens.tolist() == full.tokens.tolist()
    assert completion.finish_reason is FinishReason.STOP


def _stops(engine, request):
    return engine.generate([request])[0].finish_reason is FinishReason.STOP


def test_temperature_zero_is_hugging_faces_greedy_generation(engine, policy, prompts, end_tokens):
    completions = engine.generate(requests_of(prompts, sampling=Sampling(0.0, 1.0, LIMIT)))
    for prompt, completion in zip(prompts, completions, strict=True):
        context = torch.from_numpy(prompt.astype(np.int64))[None]
        expected = policy.generate(
            context,
            attention_mask=torch.ones_like(context),
            do_sample=False,
            max_new_tokens=LIMIT,
            eos_token_id=list(end_tokens),
        )
        assert completion.tokens.tolist() == expected[0, len(prompt) :].tolist()


def test_temperature_zero_and_others_share_a_batch(engine, prompts):
    greedy = requests_of(prompts, sampling=Sampling(0.0, 1.0, LIMIT))
    warm = requests_of(prompts)
    mixed = tokens_of(engine.generate([*greedy, *warm]))
    assert mixed == tokens_of(engine.generate(greedy)) + tokens_of(engine.generate(warm))


def test_top_p_keeps_to_the_smallest_set_of_that_mass(engine, policy, prompts):
    top_p = 0.7
    requests = requests_of(prompts, repeats=3, sampling=Sampling(1.5, top_p, LIMIT))
    outside_without = 0
    for request, completion in zip(requests, engine.generate(requests), strict=True):
        probabilities = distributions(policy, request.tokens, completion.tokens, 1.5).exp()
        chosen = torch.from_numpy(completion.tokens.astype(np.int64))[:, None]
        likelier = torch.where(probabilities > probabilities.gather(-1, chosen), probabilities, 0).sum(-1)
        assert float(likelier.max()) < top_p + 1e-5
    for request, completion in zip(requests_of(prompts, repeats=3), _warm(engine, prompts), strict=True):
        probabilities = distributions(policy, request.tokens, completion.tokens, 1.5).exp()
        chosen = torch.from_numpy(completion.tokens.astype(np.int64))[:, None]
        likelier = torch.where(probabilities > probabilities.gather(-1, chosen), probabilities, 0).sum(-1)
        outside_without += int((likelier >= top_p + 1e-5).sum())
    assert outside_without > 0


def _warm(engine, prompts):
    return engine.generate(requests_of(prompts, repeats=3, sampling=Sampling(1.5, 1.0, LIMIT)))


def test_each_distinct_prompt_is_prefilled_once_and_finished_rows_leave(engine, prompts, monkeypatch):
    rows, forward = [], engine.model.forward

    def counted(*arguments, **keywords):
        rows.append(len(keywords["input_ids"]))
        return forward(*arguments, **keywords)

    monkeypatch.setattr(engine.model, "forward", counted)
    engine.generate(requests_of(prompts[:3], repeats=16))
    assert rows[:2] == [3, 48]
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert rows[-1] < 48


def test_no_request_no_completion(engine):
    assert engine.generate([]) == []


def test_new_weights_are_taken_in_place(own_engine, policy, prompts):
    requests = requests_of(prompts)
    before = own_engine.generate(requests)
    places = [parameter.data_ptr() for parameter in own_engine.model.parameters()]
    generator = torch.Generator().manual_seed(0)
    changed = {
        name: tensor + 0.02 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in policy.state_dict().items()
    }
    changed["lm_head.weight"] = changed["model.embed_tokens.weight"]
    own_engine.load_weights(changed, 17)
    assert own_engine.weights_version == 17
    assert [parameter.data_ptr() for parameter in own_engine.model.parameters()] == places
    after = own_engine.generate(requests)
    assert tokens_of(after) != tokens_of(before)
    policy_then = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    try:
        policy.load_state_dict(changed)
        for request, completion in zip(requests, after, strict=True):
            expected = logprobs(policy, request.tokens, completion.tokens)
            assert np.abs(completion.logprobs - expected).max() < 1e-4
    finally:
        policy.load_state_dict(policy_then)


@pytest.mark.parametrize("spoil", [lambda w: w.pop("model.norm.weight"), lambda w: w.update(more=torch.zeros(1))])
def test_weights_of_another_model_are_refused(own_engine, policy, spoil):
    weights = dict(policy.state_dict())
    spoil(weights)
    with pytest.raises(RuntimeError, match="model.norm.weight|more"):
        own_engine.load_weights(weights, 3)
    assert own_engine.weights_version == 0


def test_an_unknown_engine_is_named():
    with pytest.raises(ValueError, match="env_runners.engine: 'tgi'"):
        make_engine("tgi")
