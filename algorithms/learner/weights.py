"""The policy's weights as they leave the learners: whole, under Hugging Face names, adapters merged."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import nn

from algorithms.learner.model import adapted_layers, merged_weight, peft_name
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


def optimizer_tensors(lm: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Every moment and step count, whole: `("parameter name/exp_avg", tensor)`, in the order of the parameters.

    Parameters that were never stepped are left out. All learners have to iterate to the end where the model is
    sharded.
    """
    for name, parameter in lm.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", whole(torch.as_tensor(value))


def pack_optimizer(lm: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """`optimizer_tensors` as a dict of copies on the CPU."""
    return {name: value.cpu().clone() for name, value in optimizer_tensors(lm, optimizer)}


def put_optimizer_tensors(lm: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Put back some of what `optimizer_tensors` gave, this learner's shards of it.

    Raises:
        ValueError: the state names a parameter that the model does not have, or has in another shape.
    """
    parameters = dict(lm.named_parameters())
    for name, value in tensors.items():
        parameter_name, key = name.rsplit("/", 1)
        if parameter_name not in parameters:
            raise ValueError(f"the optimizer state names {parameter_name!r}, which the model does not have")
        parameter = parameters[parameter_name]
        if value.ndim and value.shape != parameter.shape:
            raise ValueError(f"the optimizer state has {name!r} in shape {tuple(value.shape)}")
        if key == "step":  # stays on the CPU, where AdamW keeps it
            optimizer.state[parameter][key] = value.clone()
        else:
            optimizer.state[parameter][key] = torch.zeros_like(parameter)
            put(value, optimizer.state[parameter][key])


def unpack_optimizer(lm: nn.Module, optimizer: torch.optim.Optimizer, packed: dict[str, torch.Tensor]) -> None:
    """Replace the whole state by what `pack_optimizer` gave; raises ValueError as `put_optimizer_tensors`."""
    optimizer.state.clear()
    put_optimizer_tensors(lm, optimizer, packed)


Kind = Literal["weights", "adapter", "optimizer"]


class LearnerTensors:
    """The part of a learner that hands out weights and optimizer state, and takes them back.

    With shards every tensor is gathered from all learners: each of these methods that gives tensors has to run on all.
    """

    _learner_index: int
    _outgoing: Iterator[dict[str, torch.Tensor]] = iter(())
    # The open generator of the weight transfer, which keeps its place here between calls.
    weight_sender: Any = None

    @property
    def lm(self) -> Any:
        """The Hugging Face model."""
        raise NotImplementedError

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The policy's optimizer."""
        raise NotImplementedError

    def policy_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and whole shapes of the weights that engines take, in the order of `policy_tensors`; no gathering."""
        return full_shapes(self.lm)

    def policy_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights that engines take, see `algorithms.learner.weights.full_weights`."""
        return full_weights(self.lm)

    def open_buckets(self, kind: Kind, most_bytes: int) -> None:
        """Begin to hand out tensors by `next_bucket`; every learner has to.

        Args:
            kind: the merged weights, the adapter's, or the optimizer's moments.
            most_bytes: size of a bucket.
        """
        tensors = {
            "weights": self.policy_tensors,
            "adapter": lambda: adapter_weights(self.lm),
            "optimizer": lambda: optimizer_tensors(self.lm, self.optimizer),
        }[kind]()
        self._outgoing = buckets(tensors, most_bytes)

    def next_bucket(self) -> dict[str, torch.Tensor] | None:
        """The next tensors on the CPU, from the first learner; others gather with it and give an empty dict.

        Returns:
            None when there are no more.
        """
        bucket = next(self._outgoing, None)
        if bucket is None:
            return None
        if self._learner_index:
            return {}
        return {name: tensor.cpu().clone() for name, tensor in bucket.items()}

    def weight_names(self, kind: Kind) -> set[str]:
        """The names of all weights, or of the adapter's."""
        return adapter_names(self.lm) if kind == "adapter" else set(self.lm.state_dict())

    def put_bucket(self, kind: Kind, tensors: dict[str, torch.Tensor]) -> None:
        """Put back tensors that `next_bucket` gave; each learner keeps its part.

        Raises:
            ValueError: a name or a shape that the model does not have.
        """
        if kind == "weights":
            put_weights(self.lm, tensors)
        elif kind == "adapter":
            put_adapter_weights(self.lm, tensors)
        else:
            put_optimizer_tensors(self.lm, self.optimizer, tensors)
