"""Buckets: every tensor arrives once, in order, in the type of transit, and within the bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.rollout.weight_sync.serialization import (
    TensorsAtHand,
    as_weights,
    bytes_of,
    pack,
    plan_buckets,
    require_same_shapes,
    unpack,
)

SHAPES = st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), max_size=12)


@given(SHAPES, st.sampled_from(["float32", "bfloat16"]), st.integers(1, 600))
def test_buckets_hold_every_tensor_in_order_within_the_bound(shapes, dtype, bound):
    named = {f"w{i}": shape for i, shape in enumerate(shapes)}
    plan = plan_buckets(named, dtype, bound)
    assert [(spec.name, spec.shape) for specs in plan for spec in specs] == list(named.items())
    assert all(specs and (len(specs) == 1 or bytes_of(specs) <= bound) for specs in plan)


@settings(deadline=None)
@given(SHAPES, st.sampled_from(["float32", "bfloat16"]), st.integers(1, 600))
def test_what_is_packed_is_unpacked(shapes, dtype, bound):
    weights = {f"w{i}": torch.randn(shape) for i, shape in enumerate(shapes)}
    plan = plan_buckets({name: tuple(tensor.shape) for name, tensor in weights.items()}, dtype, bound)
    buffer = torch.empty(max(map(bytes_of, plan), default=0), dtype=torch.uint8)
    tensors, arrived = iter(weights.items()), {}
    for specs in plan:
        pack(tensors, specs, buffer)
        arrived |= {name: tensor.clone() for name, tensor in unpack(buffer, specs)}
    assert list(arrived) == list(weights)
    for name, tensor in weights.items():
        torch.testing.assert_close(arrived[name], tensor.to(getattr(torch, dtype)), rtol=0, atol=0)


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
