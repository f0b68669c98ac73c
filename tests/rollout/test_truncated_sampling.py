"""Evaluations' truncated sampling and stop texts: the same in both engines, against plain forward passes."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from algorithms.rollout.engines.base import FinishReason, GenerationRequest
from algorithms.rollout.engines.transformers import StopTexts, TransformersEngine
from algorithms.rollout.types import Sampling

from .full_forward import distributions

LIMIT = 40
HOT = Sampling(1.5, 1.0, LIMIT)
TRUNCATIONS = [
    {"top_p": 0.7},
    {"top_k": 3},
    {"min_p": 0.2},
    {"top_p": 0.8, "top_k": 5, "min_p": 0.02},
]


@pytest.fixture(scope="module")
def engine(model_folder, end_tokens, tokenizer):
    return TransformersEngine(
        model=model_folder, dtype="float32", max_num_seqs=64, eos_token_ids=end_tokens, tokenizer=tokenizer
    )


@pytest.fixture(params=["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def either(request):
    """Each of the engines."""
    return request.getfixturevalue("engine" if request.param == "transformers" else "vllm_engine")


def kept(logprobs, top_p=1.0, top_k=0, min_p=0.0):
    """The log-probs of one distribution, float64 [V], truncated token by token; the rest is -inf."""
    probabilities, out = np.exp(logprobs), np.full(len(logprobs), -np.inf)
    likely = [t for t in np.argsort(-probabilities, kind="stable") if probabilities[t] >= min_p * probabilities.max()]
    likely = likely[: top_k or None]
    total, mass = probabilities[likely].sum(), 0.0
    for token in likely:
        if mass >= top_p:
            break
        out[token], mass = np.log(probabilities[token]), mass + probabilities[token] / total
    return out - np.log(np.exp(out).sum())


def ask(prompts, sampling, repeats=2):
    return [GenerationRequest(prompt, 11 + n, sampling) for n, prompt in enumerate(prompts * repeats)]


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_samples_and_log_probs_are_those_of_what_is_kept(either, policy, prompts, truncation):
    requests = ask(prompts, replace(HOT, **truncation))
    for request, completion in zip(requests, either.generate(requests), strict=True):
        whole = distributions(policy, request.tokens, completion.tokens, HOT.temperature).double().numpy()
        for token, logprob, row in zip(completion.tokens, completion.logprobs, whole, strict=True):
            assert abs(kept(row, **truncation)[token] - logprob) < 1e-3


def test_truncated_frequencies_are_those_of_what_is_kept(either, policy, prompts):
    truncation, draws = {"top_p": 0.9, "top_k": 8, "min_p": 0.01}, 1500
    sampling = replace(HOT, temperature=2.0, max_response_tokens=1, **truncation)
    whole = distributions(policy, prompts[0], np.array([0]), 2.0)[0].double().numpy()
    expected = np.exp(kept(whole, **truncation))
    completions = either.generate([GenerationRequest(prompts[0], seed, sampling) for seed in range(draws)])
    counts = np.bincount([int(c.tokens[0]) for c in completions], minlength=len(expected))
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    assert possible.sum() > 1
    assert chisquare(counts[possible], draws * expected[possible]).pvalue > 1e-3


def test_greedy_and_whole_rows_beside_truncated_ones_stay_as_they_are(engine, prompts):
    alone = engine.generate(ask(prompts, HOT)) + engine.generate(ask(prompts, replace(HOT, temperature=0.0)))
    mixed = engine.generate(
        ask(prompts, HOT) + ask(prompts, replace(HOT, temperature=0.0, top_k=2)) + ask(prompts, replace(HOT, top_k=2))
    )
    for one, other in zip(alone, mixed[: len(alone)], strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert np.abs(one.logprobs - other.logprobs).max() < 1e-5


def test_a_response_ends_with_the_token_that_completes_a_text_or_is_named(either, tokenizer, prompts, end_tokens):
    whole = either.generate(ask(prompts, HOT))
    texts = [tokenizer.decode(c.tokens, skip_special_tokens=False) for c in whole]
    longest = max(texts, key=len)
    spanning = longest[2:6]  # of several tokens, as the embedded model's have a letter or two
    assert len(tokenizer.encode(spanning, add_special_tokens=False)) > 1
    named = int(max(whole, key=lambda c: len(c.tokens)).tokens[1])
    for own in ({"stop": (spanning, "@@")}, {"stop_token_ids": (named,)}):
        cut = 0
        for before, after in zip(whole, either.generate(ask(prompts, replace(HOT, **own))), strict=True):
            end = first_end(tokenizer, before.tokens.tolist(), own)
            assert after.tokens.tolist() == before.tokens.tolist()[:end]
            assert np.abs(after.logprobs - before.logprobs[:end]).max() < 1e-3
            stopped = end is not None or int(before.tokens[-1]) in end_tokens
            assert (after.finish_reason is FinishReason.STOP) == stopped
            cut += end is not None
        assert 0 < cut < len(whole)


def first_end(tokenizer, tokens, own):
    """How many tokens there are up to the end that `own` names; None where there is none."""
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count], skip_special_tokens=False)
        if tokens[count - 1] in own.get("stop_token_ids", ()) or any(stop in text for stop in own.get("stop", ())):
            return count
    return None


def test_a_text_that_is_completed_at_the_very_limit_is_a_stop(either, tokenizer, prompts):
    (whole,) = either.generate(ask(prompts[:1], HOT, repeats=1))
    text = tokenizer.decode(whole.tokens[:5])
    sampling = replace(HOT, max_response_tokens=5, stop=(text[-2:],))
    end = first_end(tokenizer, whole.tokens.tolist(), {"stop": sampling.stop})
    (cut,) = either.generate(ask(prompts[:1], replace(sampling, max_response_tokens=end), repeats=1))
    assert len(cut.tokens) == end and cut.finish_reason is FinishReason.STOP


@pytest.fixture(scope="module")
def byte_tokenizer():
    """A fast tokenizer of single bytes: a letter of two bytes is two tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {letter: n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize(
    ("text", "stop", "seen"),
    [
        ("naïve é end", ("é",), "naïve é"),
        ("a€b", ("€b", "zz"), "a€b"),
        ("日本語です", ("本語",), "日本語"),
        ("x</answer>y", ("</answer>",), "x</answer>"),
        ("aab", ("ab",), "aab"),
        ("abc", ("d",), None),
    ],
)
def test_a_stop_text_is_found_with_its_last_byte_and_never_in_the_prompt(byte_tokenizer, text, stop, seen):
    prompt = np.array(byte_tokenizer.encode("é €b ab</answer>本語"), np.int32)
    reader = StopTexts(byte_tokenizer, prompt, stop)
    tokens = byte_tokenizer.encode(text)
    ended = next((n + 1 for n, token in enumerate(tokens) if reader.complete(token)), None)
    assert ended == (None if seen is None else len(byte_tokenizer.encode(seen)))


def test_a_character_that_never_becomes_whole_hides_no_stop_text(byte_tokenizer):
    lone = byte_tokenizer.encode("é")[:1]
    reader = StopTexts(byte_tokenizer, np.array([], np.int32), ("END",))
    found = [reader.complete(token) for token in [*lone, *byte_tokenizer.encode("xEND")]]
    assert found == [False] * 4 + [True]


def test_reading_a_response_decodes_few_tokens_at_a_time(byte_tokenizer):
    lengths = []
    decode = byte_tokenizer.decode

    class Counted:
        def decode(self, tokens, **options):
            lengths.append(len(tokens))
            return decode(tokens, **options)

    reader = StopTexts(Counted(), np.array([], np.int32), ("END",))
    for token in byte_tokenizer.encode("é" * 500):
        reader.complete(token)
    assert max(lengths) <= 8
