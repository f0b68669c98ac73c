"""Attention over packed sequences, registered with transformers: tokens attend to their own sequence only.

No layer sees padding. On a GPU in half precision, variable-length flash attention takes the sequences as they are;
elsewhere attention alone computes in padded rectangles of sequences of similar length.
"""

import inspect
import logging
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from algorithms.learner.batch import TrainingSample, packed_batch
from algorithms.learner.packing import PackedSequences
from algorithms.learner.sharding import compute_device

NAME = "packed_sequences"
MAX_FLASH_HEAD_DIM = 256
# Least number of queries of a sliding window that are computed at a time.
WINDOW_BLOCK = 256

_logger = logging.getLogger(__name__)


def is_packed(lm: Any) -> bool:
    """Whether `use_packed_attention` has prepared this model for packed batches."""
    return bool(lm.config.get_text_config()._attn_implementation == NAME)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    sequences: PackedSequences | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention within each sequence, with the signature of transformers' attention functions.

    Without `sequences` it is transformers' own `sdpa`.

    Args:
        module: the calling attention layer.
        query: float [1, H, T, D].
        key: float [1, K, T, D], `K` dividing `H`.
        value: float [1, K, T, D].
        attention_mask: ignored when there are `sequences`.
        scaling: of the scores; None: 1 / √D.
        dropout: of the probabilities.
        sliding_window: number of tokens that a token attends to, itself included; None: all before it.
        sequences: in the one row of the batch.
        kwargs: further arguments of the model.

    Returns:
        float [1, T, H, D], and None in place of the probabilities.
    """
    if sequences is None:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            **kwargs,
        )
    q, k, v = (tensor[0].transpose(0, 1) for tensor in _to_one_dtype(query, key, value))
    if dropout == 0.0 and _flash_supports(query):
        return _flash(q, k, v, sequences, scaling, sliding_window)[None], None
    return _in_rectangles(q, k, v, sequences, scaling, dropout, sliding_window)[None], None


def _to_one_dtype(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Cast to autocast's dtype: under autocast, norms leave queries and keys in float32."""
    device = tensors[0].device.type
    low = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if low else tensors[-1].dtype
    return [tensor.to(dtype) for tensor in tensors]


def _causal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Compute causal attention in each row [B, H, T, D]; padding on the right needs no mask."""
    length = query.shape[2]
    arguments: dict[str, Any] = {"dropout_p": dropout, "scale": scaling, "enable_gqa": True}
    if window is None or window >= length:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, **arguments)
    blocks = []
    step = max(window, WINDOW_BLOCK)
    for start in range(0, length, step):
        end, first = min(start + step, length), max(0, start - window + 1)
        of_query = torch.arange(start, end, device=query.device)[:, None]
        of_key = torch.arange(first, end, device=query.device)[None]
        mask = (of_key <= of_query) & (of_key > of_query - window)
        parts = query[:, :, start:end], key[:, :, first:end], value[:, :, first:end]
        blocks.append(functional.scaled_dot_product_attention(*parts, attn_mask=mask, **arguments))
    return torch.cat(blocks, dim=2)


def _in_rectangles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: PackedSequences,
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Compute [T, H, D] in padded rows of similar length."""
    slots = [_to_slots(tensor, sequences) for tensor in (query, key, value)]
    outputs, first = [], 0
    for rectangle in sequences.rectangles:
        last = first + rectangle.rows * rectangle.width
        parts = [
            tensor[first:last].view(rectangle.rows, rectangle.width, *tensor.shape[1:]).transpose(1, 2)
            for tensor in slots
        ]
        out = _causal(parts[0], parts[1], parts[2], scaling, dropout, window)
        outputs.append(out.transpose(1, 2).reshape(last - first, *query.shape[1:]))
        first = last
    joined = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    if sequences.in_place:
        return joined
    return _FromSlots.apply(joined, sequences.slot_of_token)


def _to_slots(tensor: torch.Tensor, sequences: PackedSequences) -> torch.Tensor:
    if sequences.in_place:
        return tensor.contiguous()
    return _ToSlots.apply(tensor, sequences.token_of_slot, sequences.slot_of_token)


class _ToSlots(torch.autograd.Function):
    """Copy tokens into slots. Padding has gradient 0 under causal attention, so backward is a gather as well."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, token_of_slot: torch.Tensor, slot_of_token: torch.Tensor) -> Any:
        ctx.save_for_backward(slot_of_token)
        return tokens.index_select(0, token_of_slot)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (slot_of_token,) = ctx.saved_tensors
        return gradients[0].index_select(0, slot_of_token), None, None


class _FromSlots(torch.autograd.Function):
    """Copy slots into tokens; padding is dropped and gets gradient 0."""

    @staticmethod
    def forward(ctx: Any, slots: torch.Tensor, slot_of_token: torch.Tensor) -> Any:
        ctx.save_for_backward(slot_of_token)
        ctx.slots = len(slots)
        return slots.index_select(0, slot_of_token)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (slot_of_token,) = ctx.saved_tensors
        padded = gradients[0].new_zeros(ctx.slots, *gradients[0].shape[1:])
        return padded.index_copy_(0, slot_of_token, gradients[0]), None


def _flash_supports(query: torch.Tensor) -> bool:
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and query.shape[-1] <= MAX_FLASH_HEAD_DIM and _VARLEN is not None


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: PackedSequences,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Compute [T, H, D] by torch's variable-length flash attention."""
    if _VARLEN is None:
        raise RuntimeError("this torch has no variable-length attention: see _flash_supports")
    longest, offsets = sequences.longest, sequences.offsets
    # -1: no bound to the left. The kernel's window counts tokens before the query's own.
    left = -1 if window is None or window >= longest else window - 1
    arguments = {"enable_gqa": True} if _VARLEN_HAS_GQA_FLAG else {}
    return _VARLEN(
        query, key, value, offsets, offsets, longest, longest, scale=scaling, window_size=(left, 0), **arguments
    )


def _variable_length_attention() -> tuple[Any, bool]:
    """Return torch's function, and whether it needs `enable_gqa` for grouped queries: 2.11 does not."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None, False
    names = inspect.signature(varlen_attn).parameters
    return (varlen_attn if {"scale", "window_size"} <= set(names) else None), "enable_gqa" in names


_VARLEN, _VARLEN_HAS_GQA_FLAG = _variable_length_attention()

AttentionInterface.register(NAME, packed_attention)
# For the model's other callers: packed batches bring a placeholder that keeps transformers from making a mask.
AttentionMaskInterface.register(NAME, sdpa_mask)


# Layers that `packed_attention` supports. Chunks and recurrences would continue from sequence to sequence.
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}
PROBE_LENGTHS = (7, 5)
# Far above rounding in bfloat16, far below the effect of another sequence's tokens.
MAX_DEVIATION = 0.05


def use_packed_attention(lm: Any) -> bool:
    """Switch a Hugging Face causal LM to `packed_attention`, if its results stay the same.

    The check runs two short sequences separately with the model's own attention, and then packed. If the hidden states
    differ, the model keeps its own attention and trains on padded batches. Reasons are attention that transformers'
    registry does not replace, capped scores, and states that continue across sequences.

    Returns whether `lm`, on any device, takes packed batches now, as `is_packed` reports later.
    """
    reason = try_packed_attention(lm)
    if reason:
        _logger.warning("%s trains on padded batches: %s", type(lm).__name__, reason)
    return not reason


def try_packed_attention(lm: Any) -> str:
    """Do what `use_packed_attention` does; return why the model keeps its own attention, or "" where it does not."""
    return "" if is_packed(lm) else _reason_against(lm)


def _reason_against(lm: Any) -> str:
    unknown = set(getattr(lm.config.get_text_config(), "layer_types", None) or ()) - SUPPORTED_LAYERS
    if unknown:
        return f"packed sequences would mix in layers of the kind {', '.join(sorted(unknown))}"
    if getattr(lm.config.get_text_config(), "attn_logit_softcapping", None):
        return "its attention caps its scores"  # too small an effect for the short probe
    if not lm._can_set_attn_implementation():
        return "its attention cannot be exchanged"
    own = lm.config._attn_implementation
    training = lm.training
    lm.eval()
    try:
        expected = torch.cat([_alone(lm, row) for row in _probe(lm)])
        lm.set_attn_implementation(NAME)
        found = _packed(lm, _probe(lm))
    except (RuntimeError, TypeError, ValueError) as error:
        deviation, reason = float("inf"), f"packed sequences fail in it ({error})"
    else:
        deviation = float((found - expected).norm() / expected.norm())
        reason = f"packed sequences change its hidden states by {deviation:.0%}"
    lm.train(training)
    if deviation <= MAX_DEVIATION:
        return ""
    lm.set_attn_implementation(own)
    return reason


def _probe(lm: Any) -> list[TrainingSample]:
    vocabulary = lm.config.get_text_config().vocab_size
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, vocabulary, length).astype(np.int32) for length in PROBE_LENGTHS]
    return [TrainingSample(row, np.arange(len(row)) > 0) for row in tokens]


@torch.no_grad()
def _alone(lm: Any, row: TrainingSample) -> torch.Tensor:
    tokens = torch.from_numpy(row.tokens.astype(np.int64))[None].to(compute_device(lm))
    return _states(lm, tokens, {})


@torch.no_grad()
def _packed(lm: Any, rows: list[TrainingSample]) -> torch.Tensor:
    batch = packed_batch(rows, compute_device(lm))
    return _states(lm, batch.tokens, batch.inputs)


def _states(lm: Any, tokens: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
    hidden: torch.Tensor = lm.get_decoder()(input_ids=tokens, use_cache=False, **inputs).last_hidden_state
    return hidden[0].float()
