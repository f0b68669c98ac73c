"""Packed sequences give the hidden states and gradients that each sequence has by itself."""

import copy

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

from algorithms.grpo.loss import LossSettings
from algorithms.learner.attention import is_packed
from algorithms.learner.packability import use_packed_attention
from algorithms.learner.policy import ForwardSettings, score
from algorithms.learner.rows import TrainingRow
from algorithms.learner.update import accumulate_gradients

from .recomputation import relative_error

VOCABULARY = 60
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
ARCHITECTURES = {
    "qwen2": Qwen2Config(**SHAPE),
    "qwen2 with a window": Qwen2Config(**SHAPE, use_sliding_window=True, **WINDOWED),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
    "llama": LlamaConfig(**SHAPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=6, head_dim=16),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=16, query_pre_attn_scalar=16, **WINDOWED),
}


def model_of(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()


def rows_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        mask = np.arange(length) >= rng.integers(1, length)
        behaviour = rng.normal(-4, 0.5, int(mask.sum())).astype(np.float32)
        tokens = rng.integers(0, VOCABULARY, length).astype(np.int32)
        rows.append(TrainingRow(tokens, mask, float(rng.normal()), 0.01, behaviour, behaviour))
    return rows


def gradients_of(lm, rows, budget):
    lm.zero_grad(set_to_none=True)
    loss = accumulate_gradients(lm, rows, ForwardSettings(token_budget=budget), LossSettings()).loss
    return loss, {name: parameter.grad.clone() for name, parameter in lm.named_parameters()}


# Lengths that make one rectangle, several, and rectangles of one row; windows shorter and longer than a sequence.
LENGTHS = (4, 700, 25, 24, 23, 310, 2, 9, 9, 305, 640, 30)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_rows_have_the_log_probs_and_gradients_of_padded_ones(name):
    padded = model_of(ARCHITECTURES[name])
    packed = copy.deepcopy(padded)
    assert use_packed_attention(packed) and is_packed(packed) and not is_packed(padded)
    rows = rows_of(LENGTHS)
    alone = [score(padded, [row], ForwardSettings(), entropy=True)[0] for row in rows]
    for budget in (100, 1400, 10**6):
        found = score(packed, rows, ForwardSettings(token_budget=budget), entropy=True)
        for (logprobs, entropies), (expected_logprobs, expected_entropies) in zip(found, alone, strict=True):
            assert np.abs(logprobs - expected_logprobs).max() < 1e-4
            assert np.abs(entropies - expected_entropies).max() < 1e-4
    loss, gradients = gradients_of(packed, rows, 1400)
    expected_loss, expected_gradients = gradients_of(padded, rows, 1)
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    assert relative_error(gradients, expected_gradients) < 1e-4
