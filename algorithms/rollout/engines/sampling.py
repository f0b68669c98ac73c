"""Draw tokens from logits with numbers that belong to the request, not to the batch."""

from collections.abc import Sequence

import numpy as np
import torch


def uniform_numbers(seeds: Sequence[int], length: int) -> torch.Tensor:
    """float32 [B, length] in [0, 1): row i depends on `seeds[i]` alone."""
    rows = [np.random.default_rng(seed).random(length, dtype=np.float32) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def sample_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, temperatures: torch.Tensor, top_p: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row by inverting the cumulative distribution.

    Args:
        logits: [B, V].
        uniforms: float32 [B] in [0, 1).
        temperatures: float32 [B]; 0 takes the most likely token.
        top_p: float32 [B], or None where every row keeps the whole distribution.

    Returns:
        tokens int64 [B] and their log-probs float32 [B] under the full temperature-scaled distribution.
    """
    scale = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures))
    logprobs = (logits.float() / scale[:, None]).log_softmax(-1)
    probabilities = logprobs.exp()
    if top_p is not None:
        probabilities = _nucleus(probabilities, top_p)
    cumulative = probabilities.cumsum(-1)
    # Scaling by the last element keeps a draw inside the vocabulary whatever the rounding of the sum.
    targets = (uniforms * cumulative[:, -1])[:, None]
    tokens = (cumulative <= targets).sum(-1).clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(temperatures > 0, tokens, logits.argmax(-1))
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero what lies outside the smallest set of tokens whose mass reaches `top_p`."""
    ordered, order = probabilities.sort(-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p[:, None]
    return torch.zeros_like(probabilities).scatter(-1, order, ordered.masked_fill(outside, 0.0))
