"""The policy's weights as they leave the learners: whole, under Hugging Face names, adapters merged."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from algorithms.learner.lora import adapted_layers, merged_weight, peft_name
from algorithms.learner.sharding import put, whole

BASE = ".base_layer."


def full_weights(lm: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight and its name, one at a time; tied heads too, because an engine's own copy goes stale without.

    All learners have to iterate to the end where the model is sharded, and all get the tensors. These are on the
    device that computes; they may be the live weights.
    """
    layers = adapted_layers(lm)
    for name, tensor in lm.state_dict().items():
        if ".lora_" in name:
            continue
        layer, separator, leaf = name.partition(BASE)
        merged = separator and leaf == "weight"
        value = merged_weight(layers[layer]) if merged else whole(tensor)
        # An adapter's base may be held in less; all files and engines get one type.
        yield name.replace(BASE, "."), value.float() if layers and value.is_floating_point() else value


def full_shapes(lm: Any) -> dict[str, tuple[int, ...]]:
    """The names and shapes of `full_weights`, in its order, without gathering anything."""
    return {
        name.replace(BASE, "."): tuple(tensor.shape) for name, tensor in lm.state_dict().items() if ".lora_" not in name
    }


def adapter_weights(lm: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The adapter's weights, whole, under the names of peft's files; all learners have to iterate to the end."""
    for name, tensor in _adapter_parameters(lm):
        yield peft_name(name), whole(tensor)


def adapter_names(lm: Any) -> set[str]:
    """The names that `adapter_weights` gives."""
    return {peft_name(name) for name, _ in _adapter_parameters(lm)}


def put_weights(lm: Any, weights: dict[str, torch.Tensor]) -> None:
    """Copy some of what `full_weights` gave into a model without adapters, into this learner's shards of it.

    Raises:
        ValueError: a weight that the model does not have, or of another shape.
    """
    _copy_in(lm.state_dict(), weights)


def put_adapter_weights(lm: Any, weights: dict[str, torch.Tensor]) -> None:
    """Copy some of what `adapter_weights` gave into a model with such an adapter.

    Raises:
        ValueError: a weight that the adapter does not have, or of another shape.
    """
    _copy_in({peft_name(name): tensor for name, tensor in _adapter_parameters(lm)}, weights)


def buckets(tensors: Iterable[tuple[str, torch.Tensor]], most_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Put named tensors in dicts of at most `most_bytes`, in order; one that is larger has a dict of its own."""
    bucket: dict[str, torch.Tensor] = {}
    filled = 0
    for name, tensor in tensors:
        if bucket and filled + tensor.nbytes > most_bytes:
            yield bucket
            bucket, filled = {}, 0
        bucket[name] = tensor
        filled += tensor.nbytes
    if bucket:
        yield bucket


def _adapter_parameters(lm: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in lm.named_parameters() if ".lora_" in name)


def _copy_in(own: dict[str, Any], given: dict[str, torch.Tensor]) -> None:
    for name, value in given.items():
        if name not in own:
            raise ValueError(f"the model has no weight {name!r}")
        if own[name].shape != value.shape:
            shapes = f"{tuple(value.shape)} where the model has {tuple(own[name].shape)}"
            raise ValueError(f"{name!r} is {shapes}")
        put(value, own[name])
