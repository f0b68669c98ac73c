"""Responses in chunks: what each chunk saw is what the engine was given, the row has, and the learner computes.

Its name puts it behind the tests that start and close a vLLM of their own: that ends the one of the session.
"""

from dataclasses import replace

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.models.names import check_model
from algorithms.preflight.context_window import context_use, validate_context
from algorithms.preflight.environments import validate_environment
from algorithms.rollout.chunks import Chunks, longest_row
from algorithms.rollout.conversation import conversation, last_text
from algorithms.rollout.episode_runner import EpisodeRunner
from algorithms.rollout.types import NEW_CONTEXT, Sampling, Split
from r3env.core import Query, Reason, Verdict, VerifiableEnv

from .full_forward import assert_the_learner_agrees
from .requests import requests_of

CHUNK, HEAD, LIMIT = 8, 1, 40
SAMPLING = Sampling(2.0, 1.0, LIMIT, chunk=CHUNK)  # a high temperature: long answers


class Echo(VerifiableEnv):
    """Takes any answer."""

    def load_queries(self):
        return [Query(f"q{number}", f"7+1+9-5-{number}", "10") for number in range(8)]

    def verify(self, query, response):
        return Verdict(True, Reason.EQUAL)


def contexts(rollout):
    """(prompt, response) of each context."""
    places = np.flatnonzero(rollout.tokens == NEW_CONTEXT)
    tokens, masks = np.split(rollout.tokens, places), np.split(rollout.loss_mask, places)
    pairs = [(own[mask == 0], own[mask]) for own, mask in zip(tokens, masks, strict=True)]
    return [([token for token in prompt.tolist() if token != NEW_CONTEXT], own.tolist()) for prompt, own in pairs]


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def rollouts(request, tokenizer):
    engine = request.getfixturevalue("engine" if request.param == "transformers" else "vllm_engine")
    runner = EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, Echo))
    return runner.rollout(requests_of([f"q{number}" for number in range(8)] * 2, sampling=SAMPLING))


def test_each_chunk_follows_the_prompt_the_beginning_and_the_end_of_the_chunk_before(rollouts):
    assert max(len(contexts(rollout)) for rollout in rollouts) > 2  # 8 and at most 32 more, four at a time
    for rollout in rollouts:
        (prompt, first), *further = contexts(rollout)
        assert all(len(response) == CHUNK // 2 for _, response in further[:-1]) and len(first) <= CHUNK
        before = first
        for context, response in further:
            assert context == [*prompt, *first[:HEAD], *before[-(CHUNK // 2 - HEAD) :]]
            before = response
        assert rollout.response_length == LIMIT if rollout.truncated else rollout.correct
        assert rollout.turn_lengths == (rollout.response_length,) and rollout.error is None


def test_the_environment_reads_the_whole_response_once(rollouts, tokenizer):
    for rollout in rollouts:
        text = tokenizer.decode(rollout.response_tokens, skip_special_tokens=True)
        assert last_text(rollout, tokenizer) == text and len(conversation(rollout, tokenizer)) == 2
        assert len(rollout.turns) == 1 and (rollout.truncated or rollout.correct)


def test_the_learner_computes_the_log_probs_that_the_engine_sampled_with(rollouts, policy):
    assert_the_learner_agrees(policy, rollouts, SAMPLING.temperature)


def test_a_response_shorter_than_a_chunk_is_what_it_was(engine, tokenizer):
    runner = EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, Echo))
    uids = [f"q{number}" for number in range(8)]
    plain, chunked = (
        runner.rollout(requests_of(uids, sampling=replace(SAMPLING, max_response_tokens=10, chunk=chunk)))
        for chunk in (None, 10)
    )
    for one, other in zip(plain, chunked, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist() and one.truncated == other.truncated


def test_what_stands_before_a_chunk_by_hand():
    chunks = Chunks([1, 2], 2, [[10, 11, 12, 13, 14, 15, 16, 17], [20, 21, 22, 23]])
    sampling = Sampling(chunk=8)
    assert chunks.context(sampling) == [1, 2, 10, 21, 22, 23] and chunks.limit(sampling) == 4
    # 3 + 8, then 3 + 4 + 4 twice and 3 + 4 + 2.
    assert longest_row(3, 18, 8) == 11 + 11 + 11 + 9 and longest_row(3, 8, 8) == 11


def test_chunks_that_are_too_short_are_one_line():
    with pytest.raises(ConfigError, match="env_runners.response_chunks: 40 cut 48 tokens .* fix: fewer chunks"):
        load(None, ["env_runners.max_response_tokens=48", "env_runners.response_chunks=40"], GRPOConfig)


def test_the_papers_numbers():
    given = ["env_runners.max_response_tokens=24576", "env_runners.response_chunks=5"]
    assert Sampling.of(load(None, given, GRPOConfig)[0].env_runners_settings).chunk == 8192
    assert Sampling.of(load(None, given[:1], GRPOConfig)[0].env_runners_settings).chunk is None


def test_a_response_may_be_longer_than_the_models_context():
    given = ["env_runners.max_response_tokens=5000", "env_runners.response_chunks=99"]
    config, _ = load("configs/quickstart.yaml", given, GRPOConfig)
    use, model = context_use(config, validate_environment(config)), check_model(config.rl_module_settings)
    assert model.context < 5000 < use.row and use.plain == use.prompt + 100
    validate_context(config, model, use)
    config, _ = load("configs/quickstart.yaml", given[:1], GRPOConfig)
    with pytest.raises(ConfigError, match="max_response_tokens: 5000 and prompts"):
        validate_context(config, model, context_use(config, validate_environment(config)))
