"""Responses that share their prompt's computation have the log-probs and gradients that they have without."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithms.learner.attention import is_packed, shares_prompts, use_packed_attention
from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, microbatches, score, token_batch
from algorithms.learner.model import WithoutAdapter, add_adapter
from algorithms.learner.packing import PackedSequences
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.models.causal_lm import load_causal_lm
from tests.hand_made import penalized
from tests.shapes import PADDED, SHAPES

from .hand_joined import joined
from .recomputation import relative_error
from .test_packed_attention import ARCHITECTURES, VOCABULARY, model_of

# Prompts and responses of unlike length, so that a mask that is aligned at the wrong corner shows. The models' windows
# (6 and 16) end in prompts and in responses.
PROMPTS = {19: (1, 27, 8, 40), 5: (12, 3), 33: (7, 7, 2), 11: (14,), 150: (80, 61), 700: (300, 2, 290)}


def rows_of(vocabulary=VOCABULARY, longest=10**6, seed=0):
    """Groups whose rows do not lie together: fresh and replayed, scored and not, silent, and with gaps in the mask."""
    rng = np.random.default_rng(seed)
    rows = []
    for length, responses in PROMPTS.items():
        prompt = rng.integers(5, vocabulary, length).astype(np.int32)
        for number, response in enumerate(responses if length <= longest else ()):
            tokens = np.concatenate([prompt, rng.integers(5, vocabulary, response).astype(np.int32)])
            mask = np.arange(len(tokens)) >= length
            if response > 10:
                mask[length + 3 : length + 8] = False  # what an environment wrote between two turns
            old = rng.normal(-4, 0.3, mask.sum()).astype(np.float32)
            sampling = (old + rng.normal(0, 0.1, mask.sum())).astype(np.float32)
            advantage = 0.0 if (length, number) in {(19, 2), (33, 1)} else float(rng.normal())
            rows.append(TrainingSample(tokens, mask, advantage, 1 / 200, old, None if number == 1 else sampling))
    rows = [replace(row, old_logprobs=None) if index % 3 == 2 else row for index, row in enumerate(rows)]
    return [rows[index] for index in rng.permutation(len(rows))]


def both_ways(lm):
    """The model twice: with shared prompts, and without."""
    shared = copy.deepcopy(lm)
    assert use_packed_attention(shared) and shares_prompts(shared)
    assert use_packed_attention(lm, share_prompts=False) and not shares_prompts(lm)
    return shared, lm


def gradient_of(lm, rows, *, budget=10**6, loss=None, reference=None, dtype="float32"):
    lm.zero_grad(set_to_none=True)
    forward = ForwardSettings(token_budget=budget, temperature=0.9, dtype=dtype)
    statistics = accumulate_gradients(lm, rows, forward, loss or LossSettings(), reference)
    return statistics, {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


def assert_same_update(shared, unshared, rows, *, budget=10**6, loss=None, references=(None, None)):
    expected, gradients = gradient_of(unshared, rows, loss=loss, reference=references[1])
    found, same = gradient_of(shared, rows, budget=budget, loss=loss, reference=references[0])
    assert relative_error(same, gradients) < 1e-5
    for name in ("loss", "tokens", "trained_tokens", "clipped", "terms", "max_logp_mismatch", "max_ratio_deviation"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-6)
    for name in ("old_logprobs", "entropies"):
        assert getattr(found, name).keys() == getattr(expected, name).keys() != set()
        for index, values in getattr(expected, name).items():
            np.testing.assert_allclose(getattr(found, name)[index], values, atol=2e-5)
    return found, expected


@pytest.mark.parametrize("name", [*ARCHITECTURES, "mistral without a window"])
def test_values_and_gradients_are_those_of_responses_with_prompts_of_their_own(name):
    config = copy.deepcopy(ARCHITECTURES[name.removesuffix(" without a window")])
    if name.endswith("without a window"):
        config.sliding_window = None
    shared, unshared = both_ways(model_of(config))
    rows = rows_of()
    scored = [score(lm, rows, ForwardSettings(), entropy=True) for lm in (shared, unshared)]
    for found, expected in zip(*scored, strict=True):
        np.testing.assert_allclose(found[0], expected[0], atol=2e-5)
        np.testing.assert_allclose(found[1], expected[1], atol=2e-5)
    found, expected = assert_same_update(shared, unshared, rows)
    assert found.passed_tokens == found.slots < 0.6 * expected.passed_tokens


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in PADDED])
def test_so_are_those_of_the_shapes_of_real_families(shaped_model, name):
    shared, unshared = both_ways(load_causal_lm(str(shaped_model(name)), "float32"))
    assert_same_update(shared, unshared, rows_of(vocabulary=300, longest=150))


SETTINGS = {
    "clip": LossSettings(clip_low=0.05, clip_high=0.05),
    "sequence ratios": LossSettings(ratio_level="sequence"),
    "importance of sequences": LossSettings(importance_level="sequence", importance_mode="mask"),
    "cispo": LossSettings(objective="cispo"),
    "sapo": LossSettings(objective="sapo"),
    "dppo": LossSettings(objective="dppo"),
    "gmpo": LossSettings(objective="gmpo"),
}


@pytest.mark.parametrize("budget", [10**6, 400, 70, 1])
@pytest.mark.parametrize("name", SETTINGS)
def test_neither_the_loss_nor_where_groups_are_split_matters(name, budget):
    shared, unshared = both_ways(model_of(ARCHITECTURES["qwen3"]))
    found, _ = assert_same_update(shared, unshared, rows_of(longest=150), budget=budget, loss=SETTINGS[name])
    assert found.clipped > 0 or name != "clip"


@pytest.mark.parametrize("lora", [False, True])
def test_a_kl_term_measures_the_reference_on_shared_prompts_too(lora):
    lm = model_of(ARCHITECTURES["qwen3"])
    if lora:
        add_adapter(lm, rank=4, alpha=8)
        torch.manual_seed(1)
        for name, parameter in lm.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.05)
    both = both_ways(lm)
    references = [WithoutAdapter(each) if lora else copy.deepcopy(each).requires_grad_(False) for each in both]
    if not lora:
        torch.manual_seed(2)
        noise = [0.02 * torch.randn_like(parameter) for parameter in references[0].parameters()]
        for reference in references:
            for parameter, each in zip(reference.parameters(), noise, strict=True):
                parameter.data.add_(each)
    rows = penalized(rows_of(longest=150), 0.2)
    found, _ = assert_same_update(*both, rows, budget=400, references=references)
    assert found.terms["value/kl"] > 1e-3


def test_policy_and_reference_must_share_alike():
    both = both_ways(model_of(ARCHITECTURES["qwen3"]))
    with pytest.raises(ValueError, match="same batches"):
        gradient_of(both[0], rows_of(longest=20), reference=both[1])


@pytest.mark.parametrize("budget", [10**6, 90, 1])
def test_of_rows_with_several_sequences_each_shares_its_own_beginning(budget):
    rows = [replace(row, old_logprobs=np.full(row.response_length, -4, np.float32)) for row in rows_of(longest=33)]
    by_prompt = {length: [row for row in rows if np.argmax(row.loss_mask) == length] for length in (19, 5, 33)}
    several = [joined(part) for part in zip(*by_prompt.values(), strict=False)]
    several.append(joined([by_prompt[19][2], by_prompt[33][2]]))
    shared, unshared = both_ways(model_of(ARCHITECTURES["qwen3"]))
    expected, gradients = gradient_of(unshared, [*several, *rows])
    found, same = gradient_of(shared, [*several, *rows], budget=budget)
    assert relative_error(same, gradients) < 1e-5 and found.loss == pytest.approx(expected.loss, rel=1e-4)
    own = sum(len(row.tokens) - int(np.argmax(row.loss_mask)) for row in rows)
    if budget == 10**6:  # what several hold is in rows once more
        assert found.passed_tokens < sum(by_prompt) + 11 + 2 * own < 0.7 * expected.passed_tokens


def test_without_equal_prompts_batches_are_what_they_are_without_sharing():
    rows = list({row.parts[0].prompt: row for row in rows_of()}.values())
    both = both_ways(model_of(ARCHITECTURES["qwen3"]))
    for budget in (1, 60, 10**6):
        forward = ForwardSettings(token_budget=budget)
        assert microbatches(both[0], rows, forward) == microbatches(both[1], rows, forward)
    assert isinstance(token_batch(both[0], rows).inputs["sequences"], PackedSequences)
    gradients = [gradient_of(lm, rows, budget=60)[1] for lm in both]
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[1])


def test_gradient_checkpointing_and_bfloat16_keep_their_precision():
    shared, unshared = both_ways(model_of(ARCHITECTURES["qwen3"]).train())
    rows = rows_of(longest=150)
    _, exact = gradient_of(unshared, rows)
    errors = [relative_error(gradient_of(lm, rows, dtype="bfloat16")[1], exact) for lm in (shared, unshared)]
    assert errors[0] < 1.3 * errors[1]
    shared.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert relative_error(gradient_of(shared, rows)[1], exact) < 1e-5


def carry_over(layer, arguments, keywords, output):
    """Add each token's left neighbor to it, as short convolutions do, but nothing to the first one of a sequence."""
    positions, hidden = keywords["position_ids"], output[0] if isinstance(output, tuple) else output
    neighbor = torch.roll(hidden, 1, dims=1) * (positions != 0)[..., None]
    mixed = hidden + 0.5 * neighbor
    return (mixed, *output[1:]) if isinstance(output, tuple) else mixed


def test_a_model_that_packs_but_cannot_share_computes_each_response_with_its_prompt(caplog):
    lm = model_of(ARCHITECTURES["qwen3"])
    lm.model.layers[0].register_forward_hook(carry_over, with_kwargs=True)
    alone = copy.deepcopy(lm)
    assert use_packed_attention(lm) and is_packed(lm) and not shares_prompts(lm)
    assert "computes shared prompts once per response: shared prompts change its hidden states by" in caplog.text
    rows = rows_of(longest=33)
    for row, (found, _) in zip(rows, score(lm, rows, ForwardSettings(), entropy=False), strict=True):
        np.testing.assert_allclose(found, score(alone, [row], ForwardSettings(), entropy=False)[0][0], atol=1e-5)
