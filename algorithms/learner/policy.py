"""The policy as a function: from rows of tokens to log-probs and entropies of their responses."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from algorithms.learner.packing import microbatches
from algorithms.learner.rows import PaddedBatch, TrainingRow
from algorithms.learner.token_stats import token_statistics


@dataclass(frozen=True)
class ForwardSettings:
    """How the policy is evaluated.

    Args:
        temperature: the sampling temperature: log-probs are those of the distribution that was sampled from.
        token_budget: token slots of a micro-batch.
        dtype: compute dtype; the weights stay float32.
    """

    temperature: float = 1.0
    token_budget: int = 16384
    dtype: str = "float32"

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context to compute in."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(device.type, dtype=getattr(torch, self.dtype))


def response_statistics(
    lm: Any, batch: PaddedBatch, settings: ForwardSettings, *, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs and entropies of all response tokens of a batch.

    Returns:
        float32 [N] log-probs and, with `entropy`, float32 [N] entropies in nats, rows in order, one after another.
    """
    config = lm.config.get_text_config()
    with settings.autocast(batch.tokens.device):
        hidden = lm.get_decoder()(
            input_ids=batch.tokens, attention_mask=batch.attention_mask, use_cache=False
        ).last_hidden_state
        predicted = batch.loss_mask[:, 1:]
        head = lm.get_output_embeddings()
        return token_statistics(
            hidden[:, :-1][predicted],
            head.weight,
            batch.tokens[:, 1:][predicted],
            temperature=settings.temperature,
            bias=getattr(head, "bias", None),
            softcap=getattr(config, "final_logit_softcapping", None),
            entropy=entropy,
        )


@torch.no_grad()
def score(
    lm: nn.Module, rows: Sequence[TrainingRow], settings: ForwardSettings, *, entropy: bool
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Log-probs (and entropies) of each row's response tokens, float32 [L] a row."""
    device = next(lm.parameters()).device
    results: list[tuple[np.ndarray, np.ndarray | None]] = [(np.zeros(0, np.float32), None)] * len(rows)
    for indices in microbatches([len(row.tokens) for row in rows], settings.token_budget):
        chosen = [rows[i] for i in indices]
        logprobs, entropies = response_statistics(lm, PaddedBatch.of(chosen, device), settings, entropy=entropy)
        ends = np.cumsum([row.response_length for row in chosen])[:-1]
        split_logprobs = np.split(logprobs.float().cpu().numpy(), ends)
        split_entropies = np.split(entropies.cpu().numpy(), ends) if entropies is not None else [None] * len(chosen)
        for index, row_logprobs, row_entropies in zip(indices, split_logprobs, split_entropies, strict=True):
            results[index] = (row_logprobs, row_entropies)
    return results
