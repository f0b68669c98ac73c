"""Sample tokens from logits with random numbers that depend on the request, not on the batch."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask


def uniform_numbers(seeds: Sequence[int], length: int) -> torch.Tensor:
    """float32 [B, length] in [0, 1): row i depends on `seeds[i]` alone."""
    rows = [np.random.default_rng(seed).random(length, dtype=np.float32) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


class Truncation(NamedTuple):
    """Which part of its distribution each row samples from.

    Args:
        top_p: float32 [B], as in `Sampling`.
        top_k: int64 [B], likewise.
        min_p: float32 [B], likewise.
    """

    top_p: torch.Tensor
    top_k: torch.Tensor
    min_p: torch.Tensor

    def of(self, rows: torch.Tensor | slice) -> "Truncation":
        """Return these rows."""
        return Truncation(*(values[rows] for values in self))


def sample_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, temperatures: torch.Tensor, truncation: Truncation | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row by inverting the cumulative distribution.

    Args:
        logits: [B, V].
        uniforms: float32 [B] in [0, 1).
        temperatures: float32 [B]; 0 takes the most likely token.
        truncation: of each row; None where every row keeps the whole distribution.

    Returns:
        tokens int64 [B] and their log-probs float32 [B] under the distribution that they are sampled from.
    """
    blocks = range(0, len(logits), _rows_in_cache(logits))
    step = blocks.step
    parts = [
        _sample_rows(logits[rows], uniforms[rows], temperatures[rows], truncation and truncation.of(rows))
        for rows in (slice(i, i + step) for i in blocks)
    ]
    if len(parts) == 1:
        return parts[0]
    tokens, logprobs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


# A CPU's cache holds so many numbers of a few copies of the logits: with a large vocabulary these are some rows.
CACHED_LOGITS = 2**18


def _rows_in_cache(logits: torch.Tensor) -> int:
    return max(1, CACHED_LOGITS // logits.shape[-1]) if logits.device.type == "cpu" else max(1, len(logits))


def _sample_rows(
    logits: torch.Tensor, uniforms: torch.Tensor, temperatures: torch.Tensor, truncation: Truncation | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scale = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures))
    logprobs = (logits.float() / scale[:, None]).log_softmax(-1)
    if truncation is not None:
        logprobs = torch.where(temperatures[:, None] > 0, truncated(logprobs, truncation), logprobs)
    cumulative = logprobs.exp().cumsum(-1)
    # Scaling by the last element keeps a sample inside the vocabulary whatever the rounding of the sum.
    targets = (uniforms * cumulative[:, -1])[:, None]
    tokens = torch.searchsorted(cumulative, targets, right=True).clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(targets.isnan(), 0, tokens)[:, 0]  # a policy that overflowed
    tokens = torch.where(temperatures > 0, tokens, logits.argmax(-1))
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def truncated(logprobs: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Return the log-probs of what is kept, float32 [B, V], normalized; those of the rest are -inf.

    The order is vLLM's: `min_p`, then `top_k`, then `top_p` of what these leave. The most likely token is always kept,
    and so are all that are as likely as the last of `top_k`.
    """
    ordered, order = logprobs.sort(-1, descending=True)
    outside = ordered < ordered[:, :1] + truncation.min_p[:, None].log()
    last = torch.where(truncation.top_k > 0, truncation.top_k, logprobs.shape[-1]).clamp(max=logprobs.shape[-1]) - 1
    outside |= ordered < ordered.gather(-1, last[:, None])
    likely = ordered.masked_fill(outside, -torch.inf).softmax(-1)
    # Rounding must cut nothing off where the mass is to be 1.
    outside |= (likely.cumsum(-1) - likely >= truncation.top_p[:, None]) & (truncation.top_p < 1)[:, None]
    outside[:, 0] = False
    kept = ordered.masked_fill(outside, -torch.inf).log_softmax(-1)
    return torch.empty_like(logprobs).scatter_(-1, order, kept)


# Tokens of room that a layer gets when it has to grow; what it holds is copied then.
ROOM = 64


def preallocated_kv_cache(config: Any) -> DynamicCache:
    """Make a model's cache: layers that keep all tokens have room ahead, others (sliding windows, states) do not."""
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def select_rows(cache: DynamicCache, rows: Any) -> None:
    """Keep these rows of a cache, int64 [B], in this order; a row may come several times."""
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionCacheLayerMixin):  # states, for which transformers has only this
            LinearAttentionCacheLayerMixin.reorder_cache(layer, rows)
        if isinstance(layer, DynamicLayer):
            layer.batch_select_indices(rows)


class PreallocatedLayer(DynamicLayer):
    """One layer's keys and values, float [B, heads, tokens, head size]: views of larger buffers."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Start without tokens."""
        super().lazy_initialization(key_states, value_states)
        self.buffers = [states[:, :, :0] for states in (key_states, value_states)]
        self.length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append tokens; returns the keys and values of all, views that the next update leaves as they are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[-2]
        for place, states in enumerate((key_states, value_states)):
            if self.length > self.buffers[place].shape[-2]:
                self.buffers[place] = _enlarged(self.buffers[place], start, self.length + ROOM)
            self.buffers[place][:, :, start : self.length] = states
        return self._view()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order; a row may come several times."""
        if self.is_initialized:
            self.buffers = [buffer.index_select(0, indices) for buffer in self.buffers]
            self._view()

    def _view(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (buffer[:, :, : self.length] for buffer in self.buffers)
        return self.keys, self.values


def _enlarged(buffer: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    larger = buffer.new_empty(*buffer.shape[:2], capacity, buffer.shape[-1])
    larger[:, :, :length] = buffer[:, :, :length]
    return larger


NAME = "grouped_decoding"


def use_grouped_decoding(lm: Any) -> None:
    """Let a model decode with `grouped_attention`, if it would use transformers' `sdpa`."""
    if lm.config.get_text_config()._attn_implementation == "sdpa":
        lm.set_attn_implementation(NAME)


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention as transformers calls it; for single queries per row, join those that share a key.

    With a mask transformers' own `sdpa` first copies each key for every query head that reads it.

    Args:
        module: the attention layer that calls.
        query: float [B, H, T, D].
        key: float [B, K, S, D], `K` dividing `H`.
        value: float [B, K, S, D].
        attention_mask: bool or float [B, 1, T, S], or None.
        dropout: of the probabilities.
        scaling: of the scores; None: 1 / √D.
        kwargs: whatever else the model passes on.

    Returns:
        float [B, T, H, D], and None in place of the probabilities.
    """
    batch, heads, length, size = query.shape
    if length > 1 or heads == key.shape[1] or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    # The heads of a group become the queries of one head.
    grouped = query.view(batch, key.shape[1], -1, size)
    if attention_mask is not None:
        attention_mask = attention_mask.expand(-1, -1, grouped.shape[2], -1)
    outputs = [
        functional.scaled_dot_product_attention(
            grouped[rows],
            key[rows, :, first:],
            value[rows, :, first:],
            attn_mask=None if attention_mask is None else attention_mask[rows, ..., first:],
            dropout_p=dropout,
            scale=scaling,
        )
        for rows, first in _blocks(batch, key.shape[2])
    ]
    output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    return output.reshape(batch, 1, heads, value.shape[-1]), None


# Rows whose contexts begin this many tokens apart are not computed together: the shorter ones are padded on the left.
PADDING_WORTH_A_CALL = 32

Block = tuple[slice, int]  # rows, and the first key that one of them attends to
_LEFT_PADDING: ContextVar[tuple[int, Sequence[Block]]] = ContextVar("left_padding", default=(0, ()))


def padding_blocks(padding: Sequence[int]) -> list[Block]:
    """Cut rows, shortest contexts first, into blocks of similar padding; `padding` counts each row's, on the left."""
    starts = [0]
    for row, own in enumerate(padding):
        if padding[starts[-1]] - own >= PADDING_WORTH_A_CALL:
            starts.append(row)
    ends = [*starts[1:], len(padding)]
    return [(slice(start, end), min(padding[start:end])) for start, end in zip(starts, ends, strict=True)]


@contextlib.contextmanager
def left_padding(length: int, blocks: Sequence[Block]) -> Iterator[None]:
    """Let `grouped_attention` skip the padding of these blocks in layers that keep `length` keys."""
    token = _LEFT_PADDING.set((length, blocks))
    try:
        yield
    finally:
        _LEFT_PADDING.reset(token)


def _blocks(rows: int, keys: int) -> Sequence[Block]:
    length, blocks = _LEFT_PADDING.get()  # waits: no queue, a context variable
    return blocks if length == keys and blocks else [(slice(0, rows), 0)]


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
