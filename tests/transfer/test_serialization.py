"""Buckets: every tensor arrives once, in order, in the type of transit, and within the bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from algorithms.learner.weights import float32_names, full_shapes, full_weights
from algorithms.rollout.weight_sync.serialization import (
    TensorsAtHand,
    as_weights,
    bytes_of,
    pack,
    plan_buckets,
    require_same_shapes,
    unpack,
)

EXPERTS = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
SHAPES = st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), max_size=12)


def arrive(weights, plan):
    buffer = torch.empty(max(map(bytes_of, plan), default=0), dtype=torch.uint8)
    tensors, arrived = iter(weights.items()), {}
    for specs in plan:
        pack(tensors, specs, buffer)
        arrived |= {name: tensor.clone() for name, tensor in unpack(buffer, specs)}
    return arrived


@given(SHAPES, st.sampled_from(["float32", "bfloat16"]), st.integers(1, 600))
def test_buckets_hold_every_tensor_in_order_within_the_bound(shapes, dtype, bound):
    named = {f"w{i}": shape for i, shape in enumerate(shapes)}
    plan = plan_buckets(named, dtype, bound)
    assert [(spec.name, spec.shape) for specs in plan for spec in specs] == list(named.items())
    assert all(specs and (len(specs) == 1 or bytes_of(specs) <= bound) for specs in plan)


@settings(deadline=None)
@given(SHAPES, st.sampled_from(["float32", "bfloat16"]), st.integers(1, 600), st.sets(st.integers(0, 11)))
def test_what_is_packed_is_unpacked(shapes, dtype, bound, whole):
    weights = {f"w{i}": torch.randn(shape) for i, shape in enumerate(shapes)}
    whole = {f"w{i}" for i in whole}
    plan = plan_buckets({name: tuple(tensor.shape) for name, tensor in weights.items()}, dtype, bound, whole)
    arrived = arrive(weights, plan)
    assert list(arrived) == list(weights)
    for name, tensor in weights.items():
        sent = tensor if name in whole else tensor.to(getattr(torch, dtype))
        torch.testing.assert_close(arrived[name], sent, rtol=0, atol=0)


def test_what_engines_hold_in_float32_arrives_whole():
    lm = AutoModelForCausalLM.from_config(Glm4MoeConfig(**EXPERTS))
    exact = torch.linspace(7.99, 8.03, 4)
    lm.model.layers[1].mlp.gate.e_score_correction_bias.copy_(exact)
    plan = plan_buckets(full_shapes(lm), "bfloat16", 1 << 30, float32_names(lm))
    assert len(plan) == 1, "in the model's order: an engine holds a layer's tensors until all are there"
    arrived = arrive(dict(full_weights(lm)), plan)
    assert arrived["model.layers.1.mlp.gate.e_score_correction_bias"].tolist() == exact.tolist()
    assert all((tensor.dtype == torch.float32) == (tensor.ndim == 1) for tensor in arrived.values())


def test_a_matrix_that_transformers_keeps_in_float32_does_too():
    lm = torch.nn.ModuleDict({"gate": torch.nn.Linear(2, 3), "gated": torch.nn.Linear(2, 3, bias=False)})
    lm._keep_in_fp32_modules_strict = {"gate.weight"}
    assert float32_names(lm) == {"gate.weight", "gate.bias"} and "gated.weight" in full_shapes(lm)


@pytest.mark.parametrize(
    "sent", [("b", torch.zeros(2)), ("a", torch.zeros(3)), ("a", torch.zeros(2, dtype=torch.int64))]
)
def test_a_learner_that_sends_something_else_than_it_announced_is_stopped(sent):
    (specs,) = plan_buckets({"a": (2,)}, "float32")
    with pytest.raises(RuntimeError, match="announced a"):
        pack(iter([sent]), specs, torch.empty(8, dtype=torch.uint8))


def test_a_state_dict_and_its_items_are_weights_too():
    state = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    for given_as in (state, state.items(), TensorsAtHand({"a": (2, 3), "b": (1,)}, iter(state.items()))):
        weights = as_weights(given_as)
        assert weights.shapes == {"a": (2, 3), "b": (1,)}
        assert [name for bucket in weights.buckets() for name, _ in bucket] == ["a", "b"]


@pytest.mark.parametrize("given_shapes", [{}, {"a": (3,)}, {"a": (2,), "b": (1,)}])
def test_other_names_and_shapes_are_refused(given_shapes):
    require_same_shapes({"a": (2,)}, {"a": (2,)})
    with pytest.raises(RuntimeError, match="missing, unknown or of another shape"):
        require_same_shapes({"a": (2,)}, given_shapes)
