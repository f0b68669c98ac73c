"""Attention of one new token with grouped keys, registered with transformers: no key is copied for its queries."""

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

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
    """Attention as transformers calls it; where there is one query a row, those that share a key go together.

    With a mask transformers' own `sdpa` first copies each key for every query head that reads it.

    Args:
        module: the attention layer that calls.
        query: float [B, H, T, D].
        key: float [B, K, S, D], `K` dividing `H`.
        value: float [B, K, S, D].
        attention_mask: bool or float [B, 1, T, S], or None.
        dropout: of the probabilities.
        scaling: of the scores; None: 1 / √D.
        kwargs: whatever else the model hands on.

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
    output = functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return output.reshape(batch, 1, heads, value.shape[-1]), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
