"""Causal attention for sequences in one row of tokens: by a GPU's variable-length kernel, or in padded rectangles."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from algorithms.learner.packing import PackedSequences
from algorithms.learner.shared_sequences import ContextRectangle, SharedSequences

MAX_FLASH_HEAD_DIM = 256
LEAST_FLASH_CAPABILITY = (8, 0)
# Least number of queries of a sliding window, and number of those behind a context, that are computed at a time.
QUERY_BLOCK = 256


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: PackedSequences | SharedSequences,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
) -> torch.Tensor:
    """Compute causal attention within each sequence.

    Args:
        query: float [T, H, D].
        key: float [T, K, D], `K` dividing `H`.
        value: float [T, K, D].
        sequences: where they lie.
        scaling: of the scores; None: 1 / √D.
        dropout: of the probabilities.
        window: number of tokens that a token attends to, itself included; None: all before it.

    Returns:
        float [T, H, D].
    """
    if dropout == 0.0 and _flash_supports(query):
        return _flash(query, key, value, sequences, scaling, window)
    if isinstance(sequences, SharedSequences):
        return _in_shared_rectangles(query, key, value, sequences, scaling, dropout, window)
    return _in_rectangles(query, key, value, sequences, scaling, dropout, window)


def _causal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    dropout: float,
    window: int | None,
    contexts: Sequence[int] = (0,),
) -> torch.Tensor:
    """Compute causal attention in each row [B, H, T, D]; padding on the right needs no mask.

    Keys may have more columns in front, [B, K, C + T, D]: a row's context fills the last of them, as many as its entry
    of `contexts` says, or its only one.
    """
    length, offset = query.shape[2], key.shape[2] - query.shape[2]
    windowed = window is not None and window < offset + length
    grouped = not _expands_keys(query, masked=windowed or offset > 0)
    if not grouped:
        key, value = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], dim=1) for tensor in (key, value))
    arguments: dict[str, Any] = {"dropout_p": dropout, "scale": scaling, "enable_gqa": grouped}
    if not windowed and offset == 0:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, **arguments)
    left = window if windowed and window is not None else offset + length
    step = max(left, QUERY_BLOCK) if windowed else QUERY_BLOCK
    blocks = []
    for start in range(0, length, step):
        end, first = min(start + step, length), max(0, offset + start - left + 1)
        of_query = torch.arange(offset + start, offset + end, device=query.device)[:, None]
        of_key = torch.arange(first, offset + end, device=query.device)[None]
        mask = (of_key <= of_query) & (of_key > of_query - left)
        if len(contexts) > 1:
            begins = torch.tensor([offset - context for context in contexts], device=query.device)
            mask = mask & (of_key >= begins[:, None, None, None])
        last = offset + end
        parts = query[:, :, start:end], key[:, :, first:last], value[:, :, first:last]
        blocks.append(functional.scaled_dot_product_attention(*parts, attn_mask=mask, **arguments))
    return torch.cat(blocks, dim=2)


def _expands_keys(query: torch.Tensor, *, masked: bool) -> bool:
    """Return whether each query head needs keys of its own: on a GPU without the flash kernel.

    That kernel takes half precision without a mask, and heads of up to `MAX_FLASH_HEAD_DIM`. The next best, which needs
    as little memory, knows no groups of heads, and the one behind it holds all scores, [B, H, T, T].
    """
    return query.is_cuda and (masked or query.dtype == torch.float32 or query.shape[-1] > MAX_FLASH_HEAD_DIM)


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
        parts = [_rows(tensor[first:last], rectangle.rows) for tensor in slots]
        out = _causal(parts[0], parts[1], parts[2], scaling, dropout, window)
        outputs.append(out.transpose(1, 2).reshape(last - first, *query.shape[1:]))
        first = last
    joined = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    if sequences.in_place:
        return joined
    return _FromSlots.apply(joined, sequences.slot_of_token)


def _in_shared_rectangles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: SharedSequences,
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Compute [T, H, D] in padded rows of similar length, each behind a copy of its context."""
    queries = _ToSlots.apply(query, sequences.token_of_slot, sequences.slot_of_token)
    keys, values = sequences.key_slots.copy(key), sequences.key_slots.copy(value)
    outputs = [
        _in_rectangle(queries, keys, values, rectangle, scaling, dropout, window) for rectangle in sequences.rectangles
    ]
    joined = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    return _FromSlots.apply(joined, sequences.slot_of_token)


def _in_rectangle(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rectangle: ContextRectangle,
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Compute the slots of one rectangle, [rows × width, H, D], from all slots."""
    rows, first, key = len(rectangle.segments), rectangle.query, rectangle.key
    last, last_key = first + rows * rectangle.width, key + rows * (rectangle.context + rectangle.width)
    parts = [_rows(queries[first:last], rows), _rows(keys[key:last_key], rows), _rows(values[key:last_key], rows)]
    out = _causal(parts[0], parts[1], parts[2], scaling, dropout, window, rectangle.contexts)
    return out.transpose(1, 2).reshape(last - first, *queries.shape[1:])


def _rows(slots: torch.Tensor, rows: int) -> torch.Tensor:
    """[rows × width, H, D] as [rows, H, width, D]."""
    return slots.view(rows, -1, *slots.shape[1:]).transpose(1, 2)


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
    if not (query.is_cuda and half and query.shape[-1] <= MAX_FLASH_HEAD_DIM and _VARLEN is not None):
        return False
    return torch.cuda.get_device_capability(query.device) >= LEAST_FLASH_CAPABILITY


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: PackedSequences | SharedSequences,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Compute [T, H, D] by torch's variable-length flash attention, which is causal from the lower right corner."""
    if isinstance(sequences, SharedSequences):
        # The copies of a prefix are outside the token budget; `prompt_groups` bounds them.
        key, value = sequences.keys.copy(key), sequences.keys.copy(value)
        offsets = sequences.query_offsets, sequences.key_offsets
        longest = sequences.longest_query, sequences.longest_key
    else:
        offsets, longest = (sequences.offsets,) * 2, (sequences.longest,) * 2
    # -1: no bound to the left. The kernel's window counts tokens before the query's own.
    left = -1 if window is None or window >= longest[1] else window - 1
    arguments = {"enable_gqa": True} if _VARLEN_HAS_GQA_FLAG else {}
    return _VARLEN(query, key, value, *offsets, *longest, scale=scaling, window_size=(left, 0), **arguments)


def _variable_length_attention() -> tuple[Any, bool]:
    """Return torch's function, and whether it needs `enable_gqa` for grouped queries: 2.11 does not."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None, False
    names = inspect.signature(varlen_attn).parameters
    return (varlen_attn if {"scale", "window_size"} <= set(names) else None), "enable_gqa" in names


_VARLEN, _VARLEN_HAS_GQA_FLAG = _variable_length_attention()
