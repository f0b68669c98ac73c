"""Read and write the policy's whole weights and optimizer state, under Hugging Face names."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import nn

from algorithms.learner.model import adapted_layers, merged_weight, peft_name
from algorithms.learner.nf4 import CODES, SCALES
from algorithms.learner.optimizer import restore_state
from algorithms.learner.sharding import put, whole

BASE = ".base_layer."


def full_weights(lm: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every weight with its name, adapters merged; tied heads too, or an engine's copy would become stale.

    With a sharded model all learners have to iterate to the end, and all get the tensors. These are on the compute
    device, and may be the live weights. Merged ones are float32, others as the model holds them.
    """
    layers = adapted_layers(lm)
    for name, tensor in _of_model(lm):
        layer, separator, leaf = name.partition(BASE)
        merged = separator and leaf == "weight"
        yield name.replace(BASE, "."), merged_weight(layers[layer]) if merged else whole(tensor)


def weights_of_files(lm: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `full_weights`, all float32 where there are adapters, whose base may have a lower precision."""
    adapted = bool(adapted_layers(lm))
    for name, value in full_weights(lm):
        yield name, value.float() if adapted and value.is_floating_point() else value


def full_shapes(lm: Any) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of `full_weights`, in its order, without gathering."""
    return {name.replace(BASE, "."): tuple(tensor.shape) for name, tensor in _of_model(lm)}


def float32_names(lm: Any) -> frozenset[str]:
    """Return the names in `full_weights` of what engines may hold in float32, whatever the dtype of the others.

    These are what transformers keeps so, such as a router's biases, and all vectors, which weigh nothing.
    """
    return frozenset(name.replace(BASE, ".") for name, tensor in _of_model(lm) if _keeps_float32(lm, name, tensor))


def _keeps_float32(lm: Any, name: str, tensor: torch.Tensor) -> bool:
    kept = getattr(lm, "_keep_in_fp32_modules_strict", None) or ()
    return tensor.ndim < 2 or any(part in name.replace(BASE, ".") for part in kept)


def _of_model(lm: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors without the adapter's; of a quantized layer's weight an empty one of its shape."""
    for name, tensor in lm.state_dict().items():
        if name.endswith(CODES):
            layer = lm.get_submodule(name.rpartition(".")[0])
            yield name.replace(CODES, "weight"), torch.empty(layer.out_features, layer.in_features, device="meta")
        elif ".lora_" not in name and not name.endswith(SCALES):
            yield name, tensor


def adapter_weights(lm: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the adapter's whole weights under the names of peft's files; all learners must iterate to the end."""
    for name, tensor in _adapter_parameters(lm):
        yield peft_name(name), whole(tensor)


def adapter_shapes(lm: Any) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of `adapter_weights`, in its order, without gathering."""
    return {peft_name(name): tuple(tensor.shape) for name, tensor in _adapter_parameters(lm)}


def put_weights(lm: Any, weights: dict[str, torch.Tensor]) -> None:
    """Copy weights from `full_weights` into a model without adapters, or into this learner's shards of it.

    Raises:
        ValueError: a weight that the model does not have, or of another shape.
    """
    _copy_in(lm.state_dict(), weights)


def put_adapter_weights(lm: Any, weights: dict[str, torch.Tensor]) -> None:
    """Copy weights from `adapter_weights` into a model with such an adapter.

    Raises:
        ValueError: a weight that the adapter does not have, or of another shape.
    """
    _copy_in({peft_name(name): tensor for name, tensor in _adapter_parameters(lm)}, weights)


def buckets(tensors: Iterable[tuple[str, torch.Tensor]], max_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Group named tensors in dicts of at most `max_bytes`, in order; a larger tensor has its own dict."""
    bucket: dict[str, torch.Tensor] = {}
    filled = 0
    for name, tensor in tensors:
        if bucket and filled + tensor.nbytes > max_bytes:
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
    """Yield every moment and step count, whole: `("parameter name/exp_avg", tensor)`, in the order of the parameters.

    Parameters that were never stepped are left out. With a sharded model all learners have to iterate to the end.
    """
    for name, parameter in lm.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", whole(torch.as_tensor(value))


def put_optimizer_tensors(lm: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Restore tensors from `optimizer_tensors`, or this learner's shards of them.

    Raises:
        ValueError: the state names a parameter that the model does not have, or has in another shape, or
            moments of another kind.
    """
    parameters = dict(lm.named_parameters())
    for name, value in tensors.items():
        parameter_name = name.rpartition("/")[0]
        if parameter_name not in parameters:
            raise ValueError(f"the optimizer state names {parameter_name!r}, which the model does not have")
        restore_state(optimizer, parameters[parameter_name], name, value)


Kind = Literal["weights", "adapter", "optimizer"]


class LearnerTensors:
    """Mixin of a learner: sends weights and optimizer state in buckets, and restores them.

    With shards every tensor is gathered from all learners: each method that returns tensors has to run on all of them.
    """

    _learner_index: int
    _outgoing: Iterator[dict[str, torch.Tensor]] = iter(())
    # The open generator of the weight transfer, kept between calls.
    weight_sender: Any = None

    @property
    def lm(self) -> Any:
        """The Hugging Face model."""
        raise NotImplementedError

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The policy's optimizer."""
        raise NotImplementedError

    @property
    def sends_adapter(self) -> bool:
        """Whether engines get the adapter alone."""
        return False

    def policy_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and whole shapes of the engines' weights, in `policy_tensors`' order, without gathering."""
        return adapter_shapes(self.lm) if self.sends_adapter else full_shapes(self.lm)

    def policy_float32(self) -> frozenset[str]:
        """Return the names in `policy_shapes` of what engines may hold in float32."""
        return frozenset() if self.sends_adapter else float32_names(self.lm)

    def policy_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the engines' weights: the adapter's, or all of them, see `full_weights`."""
        return adapter_weights(self.lm) if self.sends_adapter else full_weights(self.lm)

    def open_buckets(self, kind: Kind, max_bytes: int) -> None:
        """Open the stream of tensors that `next_bucket` reads; call it on every learner.

        Args:
            kind: the merged weights, the adapter's, or the optimizer's moments.
            max_bytes: size of a bucket.
        """
        tensors = {
            "weights": lambda: weights_of_files(self.lm),
            "adapter": lambda: adapter_weights(self.lm),
            "optimizer": lambda: optimizer_tensors(self.lm, self.optimizer),
        }[kind]()
        self._outgoing = buckets(tensors, max_bytes)

    def next_bucket(self) -> dict[str, torch.Tensor] | None:
        """Return the next tensors, on the CPU, from the first learner; the others gather and return an empty dict.

        Returns:
            None at the end.
        """
        bucket = next(self._outgoing, None)
        if bucket is None:
            return None
        if self._learner_index:
            return {}
        return {name: tensor.cpu().clone() for name, tensor in bucket.items()}

    def weight_names(self, kind: Kind) -> set[str]:
        """Return the names of all weights, or of the adapter's."""
        return set(adapter_shapes(self.lm)) if kind == "adapter" else set(self.lm.state_dict())

    def put_bucket(self, kind: Kind, tensors: dict[str, torch.Tensor]) -> None:
        """Restore tensors from `next_bucket`; each learner keeps its part.

        Raises:
            ValueError: a name or a shape that the model does not have.
        """
        if kind == "weights":
            put_weights(self.lm, tensors)
        elif kind == "adapter":
            put_adapter_weights(self.lm, tensors)
        else:
            put_optimizer_tensors(self.lm, self.optimizer, tensors)
