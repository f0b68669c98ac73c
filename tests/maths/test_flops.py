"""What a model's passes cost, against counting by hand and by torch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config
from transformers.models.auto import AutoModelForCausalLM

from algorithms.learner.batch import TrainingSample
from algorithms.learner.flops import (
    AttentionShape,
    ModelShape,
    forward_flops,
    model_flops_utilization,
    peak_flops,
    scoring_costs,
    training_flops,
    update_cost,
    update_costs,
)
from tests.hand_made import penalized

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FACTS = ModelShape(weights=1000.0, head=500.0, layers=(AttentionShape(8), AttentionShape(8, window=3)))


def test_a_forward_pass_costs_two_operations_a_weight_and_four_a_pair_and_channel():
    # 5 tokens: 15 pairs; with a window of 3: 1 + 2 + 3 + 3 + 3.
    assert forward_flops(FACTS, 5, 2) == 2 * (1000 * 5 + 500 * 2) + 4 * 8 * 15 + 4 * 8 * 12
    assert forward_flops(FACTS, 2, 1) == 2 * (1000 * 2 + 500) + 2 * 4 * 8 * 3


def test_backward_costs_twice_that_and_once_for_frozen_weights():
    assert training_flops(FACTS, 5, 2) == 3 * forward_flops(FACTS, 5, 2)
    attention = 4 * 8 * (15 + 12)
    products = forward_flops(FACTS, 5, 2) - attention
    assert training_flops(replace(FACTS, trained=False), 5, 2) == 2 * products + 3 * attention


@pytest.mark.parametrize("tied", [True, False])
def test_the_count_is_torchs_own_but_for_pairs_that_a_causal_mask_spares(tied):
    lm = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE, tie_word_embeddings=tied, attn_implementation="eager"))
    facts = ModelShape.of(lm)
    assert facts.head == 96 * 32 and facts.trained
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        lm(input_ids=torch.zeros(1, 10, dtype=torch.long))
    spared = sum(4 * layer.width * (10 * 10 - 55) for layer in facts.layers)
    assert forward_flops(facts, 10, 10) == counter.get_total_flops() - spared


def test_windows_and_head_sizes_are_the_configurations():
    config = Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=7, layer_types=["sliding_attention", "full_attention"]
    )
    assert ModelShape.of(AutoModelForCausalLM.from_config(config)).layers == (AttentionShape(32, 7), AttentionShape(32))
    everywhere = MistralConfig(**SHAPE, sliding_window=7)  # names no kinds of layers
    assert ModelShape.of(AutoModelForCausalLM.from_config(everywhere)).layers == (AttentionShape(32, 7),) * 2
    wide = LlamaConfig(**SHAPE, head_dim=16)
    assert ModelShape.of(AutoModelForCausalLM.from_config(wide)).layers == (AttentionShape(64), AttentionShape(64))


def test_of_experts_only_the_active_ones_count():
    two, four = (
        ModelShape.of(
            AutoModelForCausalLM.from_config(MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=active))
        )
        for active in (2, 4)
    )
    one_expert = 3 * 32 * 64
    assert four.weights - two.weights == 2 * 2 * one_expert  # two layers, two experts more


def row(advantage=0.0, *, fresh=True, scored=False):
    mask = np.arange(6) >= 4
    logprobs = np.zeros(2, np.float32)
    return TrainingSample(
        np.zeros(6, np.int32),
        mask,
        advantage,
        1.0,
        logprobs if scored or not fresh else None,
        logprobs if fresh else None,
    )


def test_a_row_costs_what_the_update_does_with_it():
    forward, both = forward_flops(FACTS, 6, 2), training_flops(FACTS, 6, 2)
    kinds = [row(1.0), row(1.0, fresh=False), row(), row(scored=True), row(fresh=False)]
    assert [update_cost(FACTS, one, reference=False) for one in kinds] == [both, both, forward, 0, 0]
    assert update_cost(FACTS, *penalized([row(scored=True)], 0.1), reference=True) == both + forward


def test_a_shared_prompt_counts_once_for_trained_rows_and_once_for_those_that_are_only_scored():
    trained, silent, done = [row(1.0)] * 3, [row()] * 2, [row(scored=True)]
    rows = [*trained, *silent, *done]
    apart = sum(update_cost(FACTS, one, reference=False) for one in rows)
    assert update_costs(FACTS, rows, reference=False, shared=False) == apart
    # All have the same 4 tokens before their response.
    again = 2 * training_flops(FACTS, 4, 0) + forward_flops(FACTS, 4, 0)
    assert update_costs(FACTS, rows, reference=False, shared=True) == apart - again
    # With a KL term every row is trained on, and the reference passes as many prompts.
    rows = penalized(rows, 0.1)
    apart = sum(update_cost(FACTS, one, reference=True) for one in rows)
    again = 5 * (training_flops(FACTS, 4, 0) + forward_flops(FACTS, 4, 0))
    assert update_costs(FACTS, rows, reference=True, shared=True) == apart - again
    assert scoring_costs(FACTS, rows, shared=True) == 6 * forward_flops(FACTS, 6, 2) - 5 * forward_flops(FACTS, 4, 0)
    assert scoring_costs(FACTS, rows[:1], shared=True) == scoring_costs(FACTS, rows[:1], shared=False)


def test_what_follows_a_shared_prompt_costs_its_own_pairs_and_those_with_the_prompt():
    one = replace(row(1.0), tokens=np.arange(6, dtype=np.int32))
    other = replace(one, tokens=np.array([0, 1, 2, 3, 9, 9], np.int32))
    # 4 + 2 + 2 tokens; pairs 10 + 2 × (5 + 6), and 9 + 2 × (3 + 3) in the window of 3.
    forward = 2 * (1000 * 8 + 500 * 4) + 4 * 8 * (32 + 21)
    assert update_costs(FACTS, [one, other], reference=False, shared=True) == 3 * forward


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA B200", 2250e12),
        ("Some other device", None),
        (None, None),
    ],
)
def test_the_peak_is_that_of_the_devices_name(device, peak):
    assert peak_flops(device, "bfloat16") == peak
    assert peak_flops(device, "float32") is None


def test_utilization_is_of_all_devices_together():
    assert model_flops_utilization(6e12, 2.0, 3, 2e12) == 0.5
    assert model_flops_utilization(6e12, 2.0, 3, None) is None
    assert model_flops_utilization(6e12, 0.0, 3, 1e12) is None
