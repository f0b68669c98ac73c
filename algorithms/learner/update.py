"""Accumulate the gradient of one optimizer step over micro-batches. Plain PyTorch: no Ray, no config object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from algorithms.learner.attention import is_packed
from algorithms.learner.batch import TokenBatch, TrainingSample, dummy_row
from algorithms.learner.chunked_logprobs import chunked_logprobs, chunked_logprobs_and_gradient
from algorithms.learner.forward import (
    ForwardSettings,
    head_arguments,
    microbatches,
    response_states,
    response_statistics,
    token_batch,
)
from algorithms.learner.loss import LossSettings
from algorithms.learner.loss_inputs import LossInputs, token_loss
from algorithms.learner.sharding import agreed_passes


@dataclass
class UpdateStatistics:
    """Sums over the response tokens of an update, and maxima; those of several learners merge.

    The mismatch is that of fresh rows that no scoring pass has measured.

    Args:
        passed_tokens: tokens that went through the model, prompts included.
        slots: of the batches that they went in; more than that where there was padding.
        flops: the model's operations (`flops.update_cost`).
        seconds: wall time of the slowest learner.
        measured: the policy's log-probs, float32 [L], of each of those rows by its index among the update's rows.
        entropies: of its next-token distributions, float32 [L] in nats, of the same rows.
    """

    loss: float = 0.0
    tokens: float = 0.0
    trained_tokens: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0
    max_logp_mismatch: float = 0.0
    max_ratio_deviation: float = 0.0
    grad_norm: float = 0.0
    skipped_steps: float = 0.0
    passed_tokens: float = 0.0
    slots: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    measured: dict[int, np.ndarray] = field(default_factory=dict)
    entropies: dict[int, np.ndarray] = field(default_factory=dict)

    BY_ROW = ("measured", "entropies")
    MAXIMA = ("max_logp_mismatch", "max_ratio_deviation", "grad_norm", "skipped_steps", "seconds")

    def merge(self, other: "UpdateStatistics") -> "UpdateStatistics":
        """Add sums, take the larger maxima, and the rows of both."""
        merged: dict[str, Any] = {name: getattr(self, name) | getattr(other, name) for name in self.BY_ROW}
        for name in {each.name for each in fields(self)} - set(self.BY_ROW):
            mine, theirs = getattr(self, name), getattr(other, name)
            merged[name] = max(mine, theirs) if name in self.MAXIMA else mine + theirs
        return UpdateStatistics(**merged)


def accumulate_gradients(
    lm: Any,
    rows: Sequence[TrainingSample],
    forward: ForwardSettings,
    loss: LossSettings,
    reference: Any = None,
) -> UpdateStatistics:
    """Add the gradient of these rows' share of the step's loss to `lm`'s parameters.

    The rows' weights are already normalized over the whole optimizer step, so that micro-batches and learners add
    up. A row without advantage gets no backward pass, and a forward pass only where nothing has measured it yet.

    Args:
        lm: the policy; its gradients are added to.
        rows: this learner's share of one optimizer step.
        forward: how the policy is evaluated.
        loss: the loss's settings.
        reference: the frozen policy of the KL term; needed when `loss.beta` is above 0.

    Raises:
        ValueError: one of policy and reference takes packed batches and the other does not.
    """
    if reference is not None and is_packed(reference) != is_packed(lm):
        raise ValueError("the reference must take the same batches as the policy: use_packed_attention on both or none")
    active = [index for index, row in enumerate(rows) if row.has_gradient(loss.beta)]
    silent = [index for index, row in enumerate(rows) if row.unmeasured and not row.has_gradient(loss.beta)]
    cut = [_cut(lm, rows, indices, forward) for indices in (active, silent)]
    passes = agreed_passes(lm, *map(len, cut))
    found: list[_Microbatch] = []
    for batches, count, train in zip(cut, passes, (True, False), strict=True):
        for indices in batches:
            with torch.set_grad_enabled(train):
                found.append(_microbatch(lm, rows, indices, forward, loss, reference))
        for _ in range(count - len(batches)):
            with torch.set_grad_enabled(train):
                _microbatch(lm, [dummy_row()], [0], forward, loss, reference)
    total = _collect(found)
    measured = [part for part in found if any(rows[index].unmeasured for index in part.indices)]
    total.measured = _by_row([(part.indices, part.logprobs) for part in measured], rows)
    total.entropies = _by_row([(part.indices, part.entropies) for part in measured], rows)
    total.passed_tokens = float(sum(microbatch.tokens for microbatch in found))
    total.slots = float(sum(microbatch.slots for microbatch in found))
    total.tokens = float(sum(row.response_length for row in rows))
    total.trained_tokens = float(sum(rows[index].response_length for index in active))
    return total


def _cut(lm: Any, rows: Sequence[TrainingSample], indices: Sequence[int], forward: ForwardSettings) -> list[list[int]]:
    batches = microbatches(lm, [rows[index] for index in indices], forward)
    return [[indices[place] for place in places] for places in batches]


@dataclass(frozen=True)
class _Microbatch:
    """What a micro-batch leaves behind, on the model's device: reading it there and then would make a GPU wait."""

    indices: Sequence[int]
    tokens: int
    slots: int
    logprobs: torch.Tensor
    entropies: torch.Tensor | None
    sums: Mapping[str, torch.Tensor]


def _microbatch(
    lm: Any,
    rows: Sequence[TrainingSample],
    indices: Sequence[int],
    forward: ForwardSettings,
    loss: LossSettings,
    reference: Any,
) -> _Microbatch:
    """Forward and, with gradients enabled, backward over the rows of these indices."""
    chosen = [rows[index] for index in indices]
    batch = token_batch(lm, chosen)
    reference_logprobs = None
    if loss.beta > 0 and reference is not None:
        with torch.no_grad():
            reference_logprobs, _ = response_statistics(reference, batch, forward, entropy=False)
    device = batch.tokens.device
    terms = LossInputs.of(chosen, device, reference_logprobs)
    entropy = any(row.unmeasured for row in chosen)
    backward = _backward_in_chunks if loss.token_local else _backward_through_all
    with forward.autocast(device):
        logprobs, entropies = backward(lm, batch, terms, forward, loss, entropy)
    with torch.no_grad():
        _, sums = token_loss(logprobs, terms, loss)
    return _Microbatch(indices, batch.real, batch.tokens.numel(), logprobs, entropies, sums)


def _backward_in_chunks(
    lm: Any, batch: TokenBatch, terms: LossInputs, forward: ForwardSettings, loss: LossSettings, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """For losses of each token by itself: their slope is known as soon as a chunk's logits are."""

    def slope(logprobs: torch.Tensor, tokens: slice) -> torch.Tensor:
        with torch.enable_grad():
            leaf = logprobs.detach().requires_grad_()
            value, _ = token_loss(leaf, terms.part(tokens), loss)
            return torch.autograd.grad(value, leaf)[0]

    hidden = response_states(lm, batch)
    logprobs, entropies, surrogate = chunked_logprobs_and_gradient(
        hidden, targets=batch.targets, slope=slope, entropy=entropy, **head_arguments(lm, forward)
    )
    if surrogate.requires_grad:
        surrogate.backward()
    return logprobs, entropies


def _backward_through_all(
    lm: Any, batch: TokenBatch, terms: LossInputs, forward: ForwardSettings, loss: LossSettings, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """For losses in which the tokens of a response hang together: their slopes need all of its log-probs."""
    hidden = response_states(lm, batch)
    logprobs, entropies = chunked_logprobs(
        hidden, targets=batch.targets, entropy=entropy, **head_arguments(lm, forward)
    )
    value, _ = token_loss(logprobs, terms, loss)
    if value.requires_grad:
        value.backward()
    return logprobs.detach(), entropies


def _collect(found: Sequence[_Microbatch]) -> UpdateStatistics:
    """Merge the micro-batches' numbers: one transfer from the device for all of them."""
    names = sorted({name for microbatch in found for name in microbatch.sums})
    if not names:
        return UpdateStatistics()
    merged = []
    for name in names:
        values = torch.stack([microbatch.sums[name].float() for microbatch in found if name in microbatch.sums])
        merged.append(values.max() if name in UpdateStatistics.MAXIMA else values.sum())
    return UpdateStatistics(**dict(zip(names, torch.stack(merged).tolist(), strict=True)))


def _by_row(
    found: Sequence[tuple[Sequence[int], torch.Tensor | None]], rows: Sequence[TrainingSample]
) -> dict[int, np.ndarray]:
    """Numbers of the response tokens of rows that nothing had measured, by the row's index."""
    kept = [(indices, values) for indices, values in found if values is not None]
    if not kept:
        return {}
    indices = [index for places, _ in kept for index in places]
    values = torch.cat([values for _, values in kept]).float().cpu().numpy()
    parts = np.split(values, np.cumsum([rows[index].response_length for index in indices])[:-1])
    return {index: part for index, part in zip(indices, parts, strict=True) if rows[index].unmeasured}
