"""Packed sequences give the hidden states and gradients that each sequence has by itself."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import (
    AttentionInterface,
    BambaConfig,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PhimoeConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

from algorithms.learner import kernels
from algorithms.learner.attention import NAME, is_packed, packed_attention, use_packed_attention
from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.packing import PackedSequences, rectangles
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings

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
        logprobs = rng.normal(-4, 0.5, int(mask.sum())).astype(np.float32)
        tokens = rng.integers(0, VOCABULARY, length).astype(np.int32)
        rows.append(TrainingSample(tokens, mask, float(rng.normal()), 0.01, logprobs, logprobs))
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


@pytest.mark.parametrize("name", ["qwen2", "qwen2 with a window"])
def test_keys_expanded_to_all_heads_give_the_same_numbers(name, monkeypatch):
    """As on a GPU in float32; faked here, where groups of heads are computed as they are."""
    lm = model_of(ARCHITECTURES[name])
    assert use_packed_attention(lm)
    rows, heads = rows_of(LENGTHS), []
    expected_loss, expected = gradients_of(lm, rows, 1400)
    attention = functional.scaled_dot_product_attention

    def noted(query, key, value, **arguments):
        heads.append((query.shape[1], key.shape[1], value.shape[1], arguments["enable_gqa"]))
        return attention(query, key, value, **arguments)

    monkeypatch.setattr(kernels, "_expands_keys", lambda query, *, masked: True)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    loss, gradients = gradients_of(lm, rows, 1400)
    assert set(heads) == {(4, 4, 4, False)}
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert relative_error(gradients, expected) < 1e-5


@pytest.mark.parametrize(
    ("on_gpu", "dtype", "masked", "width", "expands"),
    [
        (True, torch.float32, False, 128, True),
        (True, torch.bfloat16, True, 128, True),
        (True, torch.bfloat16, False, 256, False),
        (True, torch.bfloat16, False, 512, True),
        (False, torch.float32, True, 512, False),
    ],
)
def test_keys_are_expanded_where_a_gpu_would_hold_all_scores_otherwise(on_gpu, dtype, masked, width, expands):
    query = SimpleNamespace(is_cuda=on_gpu, dtype=dtype, shape=(1, 8, 16, width))
    assert kernels._expands_keys(query, masked=masked) == expands


@pytest.mark.parametrize(
    ("capability", "width", "flash"), [((7, 5), 64, False), ((8, 0), 64, True), ((9, 0), 512, False)]
)
def test_the_flash_kernel_is_for_gpus_and_heads_that_it_knows(capability, width, flash, monkeypatch):
    monkeypatch.setattr(kernels, "_VARLEN", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    query = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, shape=(16, 8, width), device="cuda:0")
    assert kernels._flash_supports(query) == flash


def test_tokens_of_one_sequence_reach_no_other():
    lm = model_of(ARCHITECTURES["qwen2"])
    use_packed_attention(lm)
    first, second = rows_of((9, 14))
    other = TrainingSample((first.tokens + 7) % VOCABULARY, first.loss_mask)
    states = [score(lm, [row, second], ForwardSettings(), entropy=False)[1][0] for row in (first, other)]
    np.testing.assert_array_equal(*states)


REFUSED = {
    "scores are capped": (
        Gemma2Config(
            **SHAPE, head_dim=16, query_pre_attn_scalar=16, attn_logit_softcapping=50.0, attn_implementation="eager"
        ),
        "caps its scores",
    ),
    "scores have sinks": (
        GptOssConfig(**SHAPE, head_dim=16, num_local_experts=2, num_experts_per_tok=1, attn_implementation="eager"),
        "change its hidden states",
    ),
    "attention is the model's own": (
        BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4),
        "replaced",
    ),
    "states run on": (BambaConfig(**SHAPE, attn_layer_indices=[1], mamba_n_heads=4), "kind"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_whose_results_would_change_keeps_padded_batches(why, caplog):
    config, reason = REFUSED[why]
    lm = model_of(config)
    own = lm.config._attn_implementation
    assert not use_packed_attention(lm)
    assert not is_packed(lm) and lm.config._attn_implementation == own
    assert reason in caplog.text and "padded batches" in caplog.text
    rows = rows_of((5, 12, 9))
    together = score(lm, rows, ForwardSettings(), entropy=False)
    for row, (logprobs, _) in zip(rows, together, strict=True):
        assert np.abs(score(lm, [row], ForwardSettings(), entropy=False)[0][0] - logprobs).max() < 1e-4


def test_a_packed_model_still_takes_padded_batches_and_generates():
    own, packed = model_of(ARCHITECTURES["qwen2 with a window"]), model_of(ARCHITECTURES["qwen2 with a window"])
    use_packed_attention(packed)
    tokens = torch.arange(36).reshape(2, 18) % VOCABULARY
    mask = torch.ones_like(tokens)
    mask[1, :9] = 0
    for arguments in ({}, {"attention_mask": mask}):
        expected, found = (lm(input_ids=tokens, **arguments).logits for lm in (own, packed))
        torch.testing.assert_close(found[mask > 0], expected[mask > 0], rtol=1e-4, atol=1e-5)
        expected, found = (lm.generate(tokens, max_new_tokens=5, do_sample=False, **arguments) for lm in (own, packed))
        assert torch.equal(found, expected)


PHIMOE = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}


@pytest.mark.parametrize(("window", "packs"), [(200, False), (None, True)])
def test_a_window_that_is_in_the_mask_alone_is_not_lost(window, packs):
    """The probe is far shorter than windows of real models are."""
    lm = model_of(PhimoeConfig(**SHAPE, **PHIMOE, sliding_window=window))
    own = lm.config._attn_implementation
    assert use_packed_attention(lm) == packs
    assert packs or lm.config._attn_implementation == own
    assert AttentionInterface()[NAME] is packed_attention, "the probe's own is gone"


@pytest.mark.parametrize("name", ["qwen2 with a window", "mistral", "gemma3"])
def test_a_window_that_layers_pass_is_no_reason_against_packing(name):
    config = copy.deepcopy(ARCHITECTURES[name])
    config.sliding_window = 200
    assert use_packed_attention(model_of(config))


def test_training_mode_outlives_the_probe():
    lm = model_of(ARCHITECTURES["llama"]).train()
    assert use_packed_attention(lm) and lm.training


def test_gradient_checkpointing_recomputes_packed_attention():
    lm = model_of(ARCHITECTURES["qwen3"]).train()
    use_packed_attention(lm)
    rows = rows_of((9, 30, 12))
    _, plain = gradients_of(lm, rows, 100)
    lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _, checkpointed = gradients_of(lm, rows, 100)
    assert relative_error(checkpointed, plain) < 1e-6


def test_bfloat16_goes_through_attention_as_bfloat16(monkeypatch):
    seen = set()
    real = torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, **arguments):
        seen.update(tensor.dtype for tensor in (query, key, value))
        return real(query, key, value, **arguments)

    lm = model_of(ARCHITECTURES["qwen3"])  # its norms leave queries and keys in float32 under autocast
    use_packed_attention(lm)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    score(lm, rows_of((9, 30)), ForwardSettings(dtype="bfloat16"), entropy=False)
    assert seen == {torch.bfloat16}


def test_rectangles_hold_every_sequence_once_and_little_padding():
    lengths = np.random.default_rng(0).lognormal(5, 1, 200).astype(int) + 1
    chosen = rectangles(lengths.tolist())
    assert sorted(row for rows in chosen for row in rows) == list(range(200))
    slots = sum(len(rows) * lengths[rows[0]] for rows in chosen)
    assert all(lengths[rows[0]] == max(lengths[row] for row in rows) for rows in chosen)
    assert slots < 1.25 * lengths.sum()


def test_slots_and_tokens_find_each_other():
    sequences = PackedSequences((3, 900, 4, 1100), torch.device("cpu"))
    assert sequences.offsets.tolist() == [0, 3, 903, 907, 2007]
    assert sequences.positions[0, :7].tolist() == [0, 1, 2, 0, 1, 2, 3]
    tokens = torch.arange(2007)
    assert torch.equal(sequences.token_of_slot[sequences.slot_of_token], tokens)
    assert len(sequences.token_of_slot) == sum(r.rows * r.width for r in sequences.rectangles)
    assert not sequences.in_place
    assert PackedSequences((5, 5, 5), torch.device("cpu")).in_place


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 40, 2000])
def test_the_gpus_kernel_agrees_with_rectangles(window):
    lengths = (300, 17, 1, 900, 64)
    sequences = PackedSequences(lengths, torch.device("cuda"))
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(1, heads, sum(lengths), 64) for heads in (6, 2, 2)]
    tensors = [torch.randn(shape, device="cuda", generator=generator).requires_grad_() for shape in shapes]
    upstream = torch.randn(1, sum(lengths), 6, 64, device="cuda", generator=generator)

    def run(dtype):
        for tensor in tensors:
            tensor.grad = None
        given = [tensor.to(dtype) for tensor in tensors]
        out, _ = packed_attention(torch.nn.Identity(), *given, None, sliding_window=window, sequences=sequences)
        (out.float() * upstream).sum().backward()
        return [out.float(), *(tensor.grad.clone() for tensor in tensors)]

    for low, exact in zip(run(torch.bfloat16), run(torch.float32), strict=True):
        assert float((low - exact).norm() / exact.norm()) < 0.02


@pytest.mark.gpu
def test_on_a_gpu_packed_rows_have_the_log_probs_of_padded_ones():
    rows = rows_of((300, 17, 90, 900, 64))
    found = []
    for packed in (True, False):
        lm = model_of(ARCHITECTURES["qwen3"]).cuda()
        assert not packed or use_packed_attention(lm)
        scored = score(lm, rows, ForwardSettings(dtype="bfloat16", token_budget=4096), entropy=False)
        found.append(np.concatenate([logprobs for logprobs, _ in scored]))
    assert np.abs(found[0] - found[1]).mean() < 0.02, "both round to bfloat16, in other orders"
    assert np.abs(found[0] - found[0].mean()).mean() > 0.1, "log-probs differ far more from each other"
