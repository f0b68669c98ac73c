"""Responses that share their prompt's computation have the log-probs and gradients that they have without."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithms.learner.attention import shares_prompts, use_packed_attention
from algorithms.learner.batch import TrainingSample, packed_batch, shared_batch
from algorithms.learner.forward import ForwardSettings, microbatches, score, token_batch
from algorithms.learner.loss import LossSettings
from algorithms.learner.model import WithoutAdapter, add_adapter
from algorithms.learner.packing import PackedSequences
from algorithms.learner.update import accumulate_gradients
from algorithms.models.causal_lm import load_causal_lm
from tests.shapes import SHAPES

from .recomputation import relative_error
from .test_packed_attention import ARCHITECTURES, VOCABULARY, model_of

CPU = torch.device("cpu")
# Prompts and responses of unlike length, so that a mask that is aligned at the wrong corner shows; windows of the
# models (6 and 16) begin in the prompt, at its end and in the response.
PROMPTS = {19: (1, 27, 8, 40), 5: (12, 3), 33: (7, 7, 2), 11: (14,), 150: (80, 61)}


def rows_of(vocabulary=VOCABULARY, seed=0):
    """Groups whose rows do not lie together: fresh and replayed, scored and not, silent, and with gaps in the mask."""
    rng = np.random.default_rng(seed)
    rows = []
    for length, responses in PROMPTS.items():
        prompt = rng.integers(5, vocabulary, length).astype(np.int32)
        for number, response in enumerate(responses):
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
    shared = copy.deepcopy(lm)
    assert use_packed_attention(shared) and shares_prompts(shared)
    assert use_packed_attention(lm, share_prompts=False) and not shares_prompts(lm)
    return shared, lm


def gradient_of(lm, rows, budget=10**6, loss=None, reference=None):
    lm.zero_grad(set_to_none=True)
    forward = ForwardSettings(token_budget=budget, temperature=0.9)
    statistics = accumulate_gradients(lm, rows, forward, loss or LossSettings(), reference)
    return statistics, {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


def assert_same(shared, unshared, rows, budget, loss=None, references=(None, None)):
    expected, gradients = gradient_of(unshared, rows, 10**6, loss, references[1])
    found, same = gradient_of(shared, rows, budget, loss, references[0])
    assert relative_error(same, gradients) < 1e-5
    for name in ("loss", "tokens", "trained_tokens", "clipped", "kl", "max_logp_mismatch", "max_ratio_deviation"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-6)
    for name in found.BY_ROW:
        assert getattr(found, name).keys() == getattr(expected, name).keys() != set()
        for index, values in getattr(expected, name).items():
            np.testing.assert_allclose(getattr(found, name)[index], values, atol=1e-5)
    return found, expected


@pytest.mark.parametrize("name", [*ARCHITECTURES, "mistral without a window"])
def test_values_and_gradients_are_those_of_responses_with_prompts_of_their_own(name):
    config = copy.deepcopy(ARCHITECTURES[name.removesuffix(" without a window")])
    if name.endswith("without a window"):
        config.sliding_window = None
    shared, unshared = both_ways(model_of(config))
    rows = rows_of()
    for one, other in zip(
        *(score(lm, rows, ForwardSettings(), entropy=True) for lm in (shared, unshared)), strict=True
    ):
        np.testing.assert_allclose(one[0], other[0], atol=1e-5)
        np.testing.assert_allclose(one[1], other[1], atol=1e-5)
    found, expected = assert_same(shared, unshared, rows, 10**6)
    assert found.passed_tokens == found.slots < 0.7 * expected.passed_tokens
