"""A base in 4 bits: what is trained beside it, and what engines and files get."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2ForCausalLM

from algorithms.config.errors import ConfigError
from algorithms.learner import learner
from algorithms.learner.flops import ModelShape
from algorithms.learner.forward import ForwardSettings
from algorithms.learner.model import adapted_layers, add_adapter
from algorithms.learner.nf4 import quantize_base
from algorithms.learner.update import accumulate_gradients
from algorithms.learner.weights import full_shapes, full_weights
from algorithms.losses.base import LossSettings

from .jobs import Setting, model, rows

CPU = torch.device("cpu")


@pytest.fixture(params=[(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)], ids=str)
def pair(request):
    """A model with its base in 4 bits, and one whose base is what these stand for; also with recomputed layers."""
    dtype, checkpointing = request.param
    plain = model(Setting(lora_rank=4, dtype=dtype, checkpointing=checkpointing))
    quantized = copy.deepcopy(plain)
    quantize_base(adapted_layers(quantized), CPU)
    for name, layer in adapted_layers(quantized).items():
        own = plain.get_submodule(name).base_layer.weight
        assert 0.01 < (own - layer.base_layer.weight).abs().max() < 0.16 * own.abs().max()
        own.data = layer.base_layer.weight
    return quantized, plain


def gradients(lm):
    given = [row for row in rows() if row.has_gradient]
    lm.train()
    accumulate_gradients(lm, given, ForwardSettings(), LossSettings(), None)
    return {name: parameter.grad for name, parameter in lm.named_parameters() if parameter.requires_grad}


def test_the_adapters_gradient_is_that_beside_the_weights_that_the_codes_stand_for(pair):
    quantized, plain = map(gradients, pair)
    assert quantized.keys() == plain.keys() and all("lora_" in name for name in quantized)
    for name, gradient in quantized.items():
        assert torch.equal(gradient, plain[name]), name


def test_engines_and_files_get_these_weights_with_the_adapter_added(pair):
    quantized, plain = pair
    assert full_shapes(quantized) == full_shapes(plain)
    whole = dict(full_weights(plain))
    for name, tensor in full_weights(quantized):
        assert torch.equal(tensor, whole[name]), name
    assert ModelShape.of(quantized) == ModelShape.of(plain)


def test_the_codes_take_half_a_byte_a_weight_and_a_scale_for_64():
    lm = model(Setting(lora_rank=4))
    weights = sum(layer.base_layer.weight.numel() for layer in adapted_layers(lm).values())
    quantize_base(adapted_layers(lm), CPU)
    held = sum(tensor.nbytes for name, tensor in lm.named_buffers() if "nf4_" in name)
    assert held == weights // 2 + 4 * weights // 64
    assert not [name for name, _ in lm.named_parameters() if "base_layer.weight" in name]


def test_a_layer_that_keeps_its_matrix_transposed_is_refused():
    lm = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=16, n_layer=1, n_head=2, n_positions=32))
    add_adapter(lm, rank=2, alpha=4.0)
    with pytest.raises(ConfigError, match=r"rl_module.lora_base: .* is a Conv1D with 768 weights, and only nn.Linear"):
        quantize_base(adapted_layers(lm), CPU)


def test_packed_attention_is_tried_where_the_codes_are(config, build, monkeypatch):
    """On a GPU it would else fail for the one reason that the rest of the model is still in the CPU's memory."""
    done, whole = [], Qwen2ForCausalLM.to
    monkeypatch.setattr(learner, "quantize_base", lambda *_: done.append("quantized"))
    monkeypatch.setattr(learner, "try_packed_attention", lambda lm: done.append("tried") or "not here")
    monkeypatch.setattr(Qwen2ForCausalLM, "to", lambda lm, *to: done.append("moved") or whole(lm, *to))
    build(config.rl_module(lora_rank=4, lora_base="nf4"))
    assert done[done.index("quantized") :][:3] == ["quantized", "moved", "tried"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rl_module": {"lora_base": "nf4"}}, "'nf4' is for the weights under an adapter"),
        (
            {"rl_module": {"lora_base": "nf4", "lora_rank": 4}, "learners": {"sharding": "fsdp", "num_learners": 2}},
            "'nf4' keeps whole layers",
        ),
        (
            {
                "rl_module": {"lora_base": "nf4", "lora_rank": 4},
                "env_runners": {"lora_weights": "adapter", "engine": "vllm"},
            },
            "the engine's base is not in 4 bits",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(config, settings, message):
    with pytest.raises(ConfigError, match=message):
        config.apply(settings).validate()
