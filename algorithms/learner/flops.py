"""The cost of rows: floating-point operations of a causal LM, counted from its weights and attention."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from algorithms.learner.batch import TrainingSample
from algorithms.learner.nf4 import NF4Linear
from algorithms.models.composite import layer_configs, layer_kinds


@dataclass(frozen=True)
class AttentionShape:
    """One attention layer.

    Args:
        width: query heads × head size.
        window: number of tokens that a token attends to, itself included; None: all before it.
    """

    width: int
    window: int | None = None


@dataclass(frozen=True)
class ModelShape:
    """The matrix products of a model.

    Args:
        weights: number that every token is multiplied with, without embeddings and head; of experts, the active ones.
        head: number in the output head, for response tokens only.
        layers: its attention.
        trained: whether the weights are trained; a frozen model under an adapter has no gradients of weights.
    """

    weights: float
    head: float
    layers: tuple[AttentionShape, ...]
    trained: bool = True

    @classmethod
    def of(cls, lm: Any) -> "ModelShape":
        """Count the weights of a Hugging Face causal LM; a sharded one counts as a whole."""
        config = lm.config.get_text_config()
        decoder = lm.get_decoder()
        # Tables that tokens look up cost nothing; Gemma 4 has one for the layers besides that of the inputs.
        tables = {id(module.weight) for module in decoder.modules() if isinstance(module, nn.Embedding)}
        tables.add(id(lm.get_output_embeddings().weight))
        matrices = [tensor for tensor in decoder.parameters() if id(tensor) not in tables]
        experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 1
        active = (getattr(config, "num_experts_per_tok", None) or experts) / experts
        weights = sum(tensor.numel() for tensor in matrices if tensor.ndim == 2)
        weights += sum(tensor.numel() * active for tensor in matrices if tensor.ndim == 3)
        quantized = (module for module in decoder.modules() if isinstance(module, NF4Linear))
        weights += sum(module.out_features * module.in_features for module in quantized)
        return cls(
            weights=float(weights),
            head=float(lm.get_output_embeddings().weight.numel()),
            layers=_attention_of(config),
            trained=all(tensor.requires_grad for tensor in matrices),
        )


def forward_flops(shape: ModelShape, length: int, response_length: int) -> float:
    """Count the operations of one row's forward pass; a multiplication and an addition are two.

    Args:
        shape: of the model.
        length: tokens of the row.
        response_length: tokens that need logits.
    """
    return 2.0 * (shape.weights * length + shape.head * response_length) + _attention_flops(shape, length)


def training_flops(shape: ModelShape, length: int, response_length: int) -> float:
    """Count the operations of one row's forward and backward pass, without recomputation of activations.

    Backward is twice forward: gradients of states and of weights. Frozen weights only have the former.
    """
    products = 2.0 * (shape.weights * length + shape.head * response_length)
    return products * (3 if shape.trained else 2) + 3 * _attention_flops(shape, length)


def scoring_cost(shape: ModelShape, row: TrainingSample) -> float:
    """Count the operations of a scoring pass on a row."""
    return _row_flops(forward_flops, shape, row)


def update_cost(shape: ModelShape, row: TrainingSample, *, reference: bool) -> float:
    """Count the operations of an update on a row: forward and backward, only forward, or none.

    Args:
        shape: of the model.
        row: to train on.
        reference: whether the reference runs forward as well.
    """
    forward = scoring_cost(shape, row)
    if row.has_gradient:
        trained = _row_flops(training_flops, shape, row)
        return trained + (forward if reference else 0.0)
    return forward if row.unscored else 0.0


def scoring_costs(shape: ModelShape, rows: Sequence[TrainingSample], *, shared: bool) -> float:
    """Count the operations of a scoring pass on rows; with `shared` each prompt counts once."""
    total = sum(scoring_cost(shape, row) for row in rows)
    return total - (_repeated(forward_flops, shape, rows) if shared else 0.0)


def update_costs(shape: ModelShape, rows: Sequence[TrainingSample], *, reference: bool, shared: bool) -> float:
    """Count the operations of an update on rows.

    Args:
        shape: of the model.
        rows: to train on.
        reference: whether the reference runs forward as well.
        shared: whether a prompt counts once for the rows that are trained on, and once for those that are only scored.
            Without it this is the sum of `update_cost`.
    """
    total = sum(update_cost(shape, row, reference=reference) for row in rows)
    if not shared:
        return total
    trained = [row for row in rows if row.has_gradient]
    scored = [row for row in rows if row.unscored and not row.has_gradient]
    total -= _repeated(training_flops, shape, trained) + _repeated(forward_flops, shape, scored)
    return total - (_repeated(forward_flops, shape, trained) if reference else 0.0)


def _repeated(
    count: Callable[[ModelShape, int, int], float], shape: ModelShape, rows: Sequence[TrainingSample]
) -> float:
    """Count the operations of prompts that other rows have computed already."""
    parts = [part for row in rows if row.response_length for part in row.parts]
    lengths = {part.prompt: part.prompt_length for part in parts}
    again = Counter(part.prompt for part in parts)
    return sum((times - 1) * count(shape, lengths[prompt], 0) for prompt, times in again.items() if times > 1)


def _row_flops(count: Callable[[ModelShape, int, int], float], shape: ModelShape, row: TrainingSample) -> float:
    return sum(count(shape, len(tokens), int(np.count_nonzero(mask))) for tokens, mask in row.sequences)


def _attention_flops(shape: ModelShape, length: int) -> float:
    """Count scores and their products with the values: two matrix products over the pairs that attend."""
    return sum(4.0 * layer.width * _pairs(length, layer.window) for layer in shape.layers)


def _pairs(length: int, window: int | None) -> float:
    if window is None or window >= length:
        return length * (length + 1) / 2
    return window * (window + 1) / 2 + (length - window) * window


def _attention_of(config: Any) -> tuple[AttentionShape, ...]:
    window = getattr(config, "sliding_window", None)
    return tuple(
        AttentionShape(_width(layer), window if kind == "sliding_attention" else None)
        for kind, layer in zip(layer_kinds(config), layer_configs(config), strict=True)
        if kind != "linear_attention"  # its products grow with the tokens, as those of other weights
    )


def _width(layer: Any) -> int:
    head_size = getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads
    return int(layer.num_attention_heads * head_size)


# Dense bfloat16 with float32 accumulation, in TFLOP/s, from the data sheets. The first name whose words are
# in the device's own name counts: variants stand before their family.
PEAK_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "GH200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "A100": 312.0,
    "A800": 312.0,
    "A40": 149.7,
    "A10G": 70.0,
    "A10": 125.0,
    "RTX A6000": 154.8,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "MI300X": 1307.0,
}


@dataclass(frozen=True)
class LearnerFacts:
    """The constants of a learner.

    Args:
        model: its matrix products.
        device: its GPU's name; None on a CPU.
        dtype: that it computes in.
        reference: whether a reference runs forward in its updates.
        padded_because: why its micro-batches are padded although they should be packed; "" where they are not.
        shares_prompts: whether its micro-batches hold a prompt once.
        unshared_because: why they do not although they should; "" where they do.
    """

    model: ModelShape
    device: str | None
    dtype: str
    reference: bool
    padded_because: str = ""
    shares_prompts: bool = False
    unshared_because: str = ""


def peak_flops(device: str | None, dtype: str) -> float | None:
    """Return a device's peak, in operations per second.

    Args:
        device: its name from the driver; None for a CPU.
        dtype: of the products.

    Returns:
        None if it is not known: on a CPU, for a device that is not listed, and for other types than bfloat16.
    """
    if device is None or dtype != "bfloat16":
        return None
    words = f" {device.replace('-', ' ')} "
    return next((tera * 1e12 for name, tera in PEAK_TFLOPS.items() if f" {name} " in words), None)


def model_flops_utilization(flops: float, seconds: float, devices: int, peak: float | None) -> float | None:
    """Return the share of the devices' peak that a model's operations used (MFU); recomputation does not count.

    Args:
        flops: the model's operations, on all devices together.
        seconds: wall time.
        devices: number that worked on it.
        peak: operations per second of one device.

    Returns:
        None if the peak is not known or no time has passed.

    Source: A. Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B.
    """
    return flops / (seconds * devices * peak) if peak and seconds > 0 else None
