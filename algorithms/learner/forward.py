"""The policy's forward pass: from rows of tokens to log-probs and entropies of their responses."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from algorithms.learner.attention import is_packed, shares_prompts
from algorithms.learner.batch import (
    TokenBatch,
    TrainingSample,
    dummy_row,
    packed_batch,
    padded_batch,
    shared_batch,
)
from algorithms.learner.chunked_logprobs import chunked_logprobs, chunked_vocabulary_logprobs
from algorithms.learner.packing import packed_microbatches, padded_microbatches
from algorithms.learner.prompt_groups import shared_microbatches
from algorithms.learner.sharding import agreed_passes, compute_device
from algorithms.models.logits import logit_transform

# The policy, the model that it began as, or another one that is frozen.
ScoringModel = Literal["policy", "reference", "teacher"]

# Of a response: the log-probs of its tokens; the means over the vocabulary of the log-probs at each of them, float32
# [L]; or the mean of the last hidden states that predict them, float32 [D].
Statistic = Literal["logprobs", "vocabulary_logprobs", "mean_states"]


@dataclass(frozen=True)
class ForwardSettings:
    """How the policy is evaluated.

    Args:
        temperature: the sampling temperature: log-probs are those of the distribution that was sampled from.
        token_budget: tokens of a micro-batch, padding included where there is any; a shared prompt counts once.
        dtype: compute dtype, whatever the weights are.
        float32_head: whether logits are multiplied out in float32 whatever the compute dtype.
    """

    temperature: float = 1.0
    token_budget: int = 16384
    dtype: str = "float32"
    float32_head: bool = False

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the autocast context to compute in."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(device.type, dtype=getattr(torch, self.dtype))


def microbatches(lm: Any, rows: Sequence[TrainingSample], settings: ForwardSettings) -> list[list[int]]:
    """Split rows into micro-batches, as row indices; rows without a response token are left out."""
    kept = [index for index, row in enumerate(rows) if row.response_length]
    if shares_prompts(lm):
        batches = shared_microbatches([rows[index].parts for index in kept], settings.token_budget)
    elif is_packed(lm):
        batches = packed_microbatches([len(rows[index].tokens) for index in kept], settings.token_budget)
    else:
        sequences = [[len(tokens) for tokens, _ in rows[index].sequences] for index in kept]
        longest, counts = [max(own) for own in sequences], [len(own) for own in sequences]
        batches = padded_microbatches(longest, settings.token_budget, counts)
    return [[kept[place] for place in places] for places in batches]


def token_batch(lm: Any, rows: Sequence[TrainingSample]) -> TokenBatch:
    """Return rows in the form that the model takes, on its device."""
    if shares_prompts(lm):
        return shared_batch(rows, compute_device(lm))
    return (packed_batch if is_packed(lm) else padded_batch)(rows, compute_device(lm))


def response_states(lm: Any, batch: TokenBatch) -> torch.Tensor:
    """Return the last hidden states that predict the response tokens, float [N, D]."""
    hidden = lm.get_decoder()(input_ids=batch.tokens, use_cache=False, **batch.inputs).last_hidden_state
    hidden = hidden.flatten(0, 1)
    return hidden.index_select(0, batch.predicting) if batch.copies is None else batch.copies.copy(hidden)


def head_arguments(lm: Any, settings: ForwardSettings) -> dict[str, Any]:
    """Return the output head for `chunked_logprobs`. Call it after the decoder's forward, which gathers it."""
    head, transform = lm.get_output_embeddings(), logit_transform(lm.config)
    weight, bias = head.weight, getattr(head, "bias", None)
    if transform.vocabulary is not None:
        weight, bias = weight[: transform.vocabulary], None if bias is None else bias[: transform.vocabulary]
    return {
        "weight": weight,
        "bias": bias,
        "scale": transform.scale,
        "softcap": transform.softcap,
        "temperature": settings.temperature,
        "float32": settings.float32_head,
    }


def response_statistics(
    lm: Any, batch: TokenBatch, settings: ForwardSettings, *, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute log-probs and entropies of all response tokens of a batch.

    Returns:
        float32 [N] log-probs and, with `entropy`, float32 [N] entropies in nats, rows in order, one after another.
    """
    with settings.autocast(batch.tokens.device):
        hidden = response_states(lm, batch)
        return chunked_logprobs(hidden, targets=batch.targets, entropy=entropy, **head_arguments(lm, settings))


def vocabulary_logprobs(lm: Any, hidden: torch.Tensor, settings: ForwardSettings) -> torch.Tensor:
    """Return the means over the vocabulary of the log-probs at hidden states, float [N, D]: float32 [N]."""
    return chunked_vocabulary_logprobs(hidden, **head_arguments(lm, settings))


def _other_statistic(lm: Any, batch: TokenBatch, settings: ForwardSettings, statistic: Statistic) -> list[np.ndarray]:
    """Return a statistic that is not log-probs of each row of a batch."""
    with settings.autocast(batch.tokens.device):
        hidden = response_states(lm, batch)
        if statistic == "mean_states":
            values = [part.float().mean(dim=0) for part in hidden.split(batch.lengths)]
        else:
            values = list(vocabulary_logprobs(lm, hidden, settings).split(batch.lengths))
    return [value.cpu().numpy() for value in values]


@torch.no_grad()
def score(
    lm: Any,
    rows: Sequence[TrainingSample],
    settings: ForwardSettings,
    *,
    entropy: bool,
    model: Any = None,
    statistic: Statistic = "logprobs",
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return log-probs (and entropies) of each row's response tokens, float32 [L] per row; or another `statistic`.

    `model` is one to compute in the place of `lm`, which says how batches are made: the reference of a KL term. A row
    without a response token has an empty statistic.
    """
    nothing = np.zeros(0, np.float32)
    results: list[tuple[np.ndarray, np.ndarray | None]] = [(nothing, nothing if entropy else None)] * len(rows)
    batches = microbatches(lm, rows, settings)
    (passes,) = agreed_passes(lm, len(batches))
    for indices in batches + [[]] * (passes - len(batches)):
        batch = token_batch(lm, [rows[index] for index in indices] or [dummy_row()])
        if statistic != "logprobs":
            values = _other_statistic(lm if model is None else model, batch, settings, statistic)
            for place, index in enumerate(indices):  # none of the row that a learner without rows computes
                results[index] = (values[place], None)
            continue
        logprobs, entropies = response_statistics(lm if model is None else model, batch, settings, entropy=entropy)
        ends = np.cumsum(batch.lengths)[:-1]
        split_logprobs = np.split(logprobs.float().cpu().numpy(), ends)
        split_entropies = [] if entropies is None else np.split(entropies.cpu().numpy(), ends)
        for place, index in enumerate(indices):
            results[index] = (split_logprobs[place], split_entropies[place] if entropy else None)
    return results
