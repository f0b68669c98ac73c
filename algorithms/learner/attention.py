"""Attention over packed sequences, registered with transformers: tokens see their own sequence and nothing else.

Every linear layer then works on tokens only. On a GPU in half precision the kernel takes sequences of any length as
they lie (flash attention); elsewhere attention alone goes through rectangles of similar length.
"""

import inspect
import logging
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from algorithms.learner.sequences import PackedSequences

NAME = "packed_sequences"
MOST_HEAD_DIM_OF_FLASH = 256
# Queries that see a sliding window are computed this many at a time at least.
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
    """Causal attention within each sequence, as transformers calls its attention functions.

    Without `sequences` it is transformers' own `sdpa`.

    Args:
        module: the attention layer that calls.
        query: float [1, H, T, D].
        key: float [1, K, T, D], `K` dividing `H`.
        value: float [1, K, T, D].
        attention_mask: not read where there are `sequences`.
        scaling: of the scores; None: 1 / √D.
        dropout: of the probabilities.
        sliding_window: how many tokens a token sees, itself included; None: all before it.
        sequences: those in the one row of the batch.
        kwargs: whatever else the model hands on.

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
    q, k, v = (tensor[0].transpose(0, 1) for tensor in _in_one_dtype(query, key, value))
    if dropout == 0.0 and _flash_takes(query):
        return _flash(q, k, v, sequences, scaling, sliding_window)[None], None
    return _in_rectangles(q, k, v, sequences, scaling, dropout, sliding_window)[None], None


def _in_one_dtype(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Under autocast norms leave queries and keys in float32; the products are computed in autocast's type."""
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
    """Causal attention in each row [B, H, T, D]; padding on the right needs no mask, nothing before it looks there."""
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
    """[T, H, D] by way of padded rows of similar length."""
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
    """Tokens into slots. Padding's gradient is 0 under causal attention, so that backward is a gather as well."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, token_of_slot: torch.Tensor, slot_of_token: torch.Tensor) -> Any:
        ctx.save_for_backward(slot_of_token)
        return tokens.index_select(0, token_of_slot)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (slot_of_token,) = ctx.saved_tensors
        return gradients[0].index_select(0, slot_of_token), None, None


class _FromSlots(torch.autograd.Function):
    """Slots into tokens; what is in padding is left behind and gets gradient 0."""

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


def _flash_takes(query: torch.Tensor) -> bool:
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and query.shape[-1] <= MOST_HEAD_DIM_OF_FLASH and _VARLEN is not None


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: PackedSequences,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """[T, H, D] by torch's own variable-length flash attention."""
    if _VARLEN is None:
        raise RuntimeError("this torch has no variable-length attention: see _flash_takes")
    longest, offsets = sequences.longest, sequences.offsets
    # -1: no bound to the left. The kernel's window counts tokens before the query's own.
    left = -1 if window is None or window >= longest else window - 1
    arguments = {"enable_gqa": True} if _VARLEN_NAMES_GQA else {}
    return _VARLEN(
        query, key, value, offsets, offsets, longest, longest, scale=scaling, window_size=(left, 0), **arguments
    )


def _variable_length_attention() -> tuple[Any, bool]:
    """Torch's function, and whether grouped queries must be asked for: 2.11 takes them without a word."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None, False
    names = inspect.signature(varlen_attn).parameters
    return (varlen_attn if {"scale", "window_size"} <= set(names) else None), "enable_gqa" in names


_VARLEN, _VARLEN_NAMES_GQA = _variable_length_attention()

AttentionInterface.register(NAME, packed_attention)
# For the model's other callers: packed batches bring a stand-in that keeps transformers from making a mask.
AttentionMaskInterface.register(NAME, sdpa_mask)
