"""Accumulate the gradient of one optimizer step over micro-batches. Plain PyTorch: no Ray, no config object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from algorithms.learner.attention import is_packed, shares_prompts
from algorithms.learner.batch import TrainingSample, dummy_row
from algorithms.learner.chunked_logprobs import chunked_logprobs, chunked_logprobs_and_gradient
from algorithms.learner.forward import (
    ForwardSettings,
    head_arguments,
    microbatches,
    response_states,
    response_statistics,
    token_batch,
    vocabulary_logprobs,
)
from algorithms.learner.loss import LossInputs, token_loss
from algorithms.learner.sharding import agreed_passes
from algorithms.losses.base import LossSettings


@dataclass
class UpdateStatistics:
    """Sums and maxima over the response tokens of an update; those of several learners merge.

    The mismatch covers on-policy rows that no scoring pass has seen.

    Args:
        terms: sums of the loss's terms: `loss/NAME`, `value/NAME` and `tokens/NAME`, see `token_loss`.
        passed_tokens: tokens that went through the model, prompts included, each as often as it was computed.
        slots: token slots of their micro-batches, padding included.
        flops: the model's operations (`flops.update_cost`).
        seconds: wall time of the slowest learner.
        old_logprobs: the policy's log-probs, float32 [L], of each of those rows by its index among the update's rows.
        entropies: of its next-token distributions, [L] in nats, of the same rows.
        entropy: their sum, of the same rows.
    """

    loss: float = 0.0
    tokens: float = 0.0
    trained_tokens: float = 0.0
    clipped: float = 0.0
    replayed_tokens: float = 0.0
    replayed_clipped: float = 0.0
    max_replayed_ratio: float = 0.0
    max_logp_mismatch: float = 0.0
    max_ratio_deviation: float = 0.0
    grad_norm: float = 0.0
    skipped_steps: float = 0.0
    passed_tokens: float = 0.0
    slots: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)
    old_logprobs: dict[int, np.ndarray] = field(default_factory=dict)
    entropies: dict[int, np.ndarray] = field(default_factory=dict)
    entropy: dict[int, float] = field(default_factory=dict)

    BY_ROW = ("old_logprobs", "entropies", "entropy")
    MAXIMA = ("max_logp_mismatch", "max_ratio_deviation", "max_replayed_ratio", "grad_norm", "skipped_steps", "seconds")

    def merge(self, other: "UpdateStatistics") -> "UpdateStatistics":
        """Add sums, take the larger maxima, and the rows of both."""
        merged: dict[str, Any] = {name: getattr(self, name) | getattr(other, name) for name in self.BY_ROW}
        merged["terms"] = {
            name: self.terms.get(name, 0.0) + other.terms.get(name, 0.0) for name in self.terms | other.terms
        }
        for name in {each.name for each in fields(self)} - merged.keys():
            mine, theirs = getattr(self, name), getattr(other, name)
            merged[name] = max(mine, theirs) if name in self.MAXIMA else mine + theirs
        return UpdateStatistics(**merged)

    def sum_entropies(self, *, keep: bool) -> None:
        """Sum each row's entropies; keep those of its tokens in half precision, or not at all."""
        self.entropy = {index: float(values.sum()) for index, values in self.entropies.items()}
        self.entropies = {i: values.astype(np.float16) for i, values in self.entropies.items()} if keep else {}


def accumulate_gradients(
    lm: Any,
    rows: Sequence[TrainingSample],
    forward: ForwardSettings,
    loss: LossSettings,
    reference: Any = None,
) -> UpdateStatistics:
    """Add the gradient of these rows' share of the step's loss to `lm`'s parameters.

    The rows' weights are already normalized over the whole optimizer step: micro-batches and learners add up. A row
    without advantage gets no backward pass, and a forward pass only if no scoring pass has seen it.

    Args:
        lm: the policy; its gradients are added to.
        rows: this learner's share of one optimizer step.
        forward: how the policy is evaluated.
        loss: the loss's settings.
        reference: the frozen policy, for terms that read `reference_logprobs`; runs forward on every micro-batch.

    Raises:
        ValueError: one of policy and reference takes packed batches, or shared prompts, and the other does not.
    """
    taken = [(is_packed(model), shares_prompts(model)) for model in (lm, reference) if model is not None]
    if len(set(taken)) > 1:
        raise ValueError("the reference must take the same batches as the policy: use_packed_attention on both or none")
    active = [index for index, row in enumerate(rows) if row.has_gradient]
    forward_only = [index for index, row in enumerate(rows) if row.unscored and not row.has_gradient]
    split = [_split(lm, rows, part, forward) for part in (active, forward_only)]
    passes = agreed_passes(lm, *map(len, split))
    results: list[_Microbatch] = []
    for batches, count, train in zip(split, passes, (True, False), strict=True):
        for indices in batches:
            with torch.set_grad_enabled(train):
                results.append(_microbatch(lm, rows, indices, forward, loss, reference))
        for _ in range(count - len(batches)):
            with torch.set_grad_enabled(train):
                _microbatch(lm, [dummy_row()], [0], forward, loss, reference)
    total = _merge(results)
    unscored = [part for part in results if any(rows[index].unscored for index in part.indices)]
    total.old_logprobs = _by_row([(part.indices, part.logprobs) for part in unscored], rows)
    total.entropies = _by_row([(part.indices, part.entropies) for part in unscored], rows)
    total.passed_tokens = float(sum(microbatch.tokens for microbatch in results))
    total.slots = float(sum(microbatch.slots for microbatch in results))
    total.tokens = float(sum(row.multiplicity * row.response_length for row in rows))
    total.trained_tokens = float(sum(rows[index].multiplicity * rows[index].response_length for index in active))
    return total


def _split(lm: Any, rows: Sequence[TrainingSample], part: Sequence[int], forward: ForwardSettings) -> list[list[int]]:
    batches = microbatches(lm, [rows[index] for index in part], forward)
    return [[part[place] for place in places] for places in batches]


@dataclass(frozen=True)
class _Microbatch:
    """Results of a micro-batch, on the model's device: reading them at once would make a GPU wait."""

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
    """Run forward and, with gradients enabled, backward over the rows of these indices."""
    chosen = [rows[index] for index in indices]
    batch = token_batch(lm, chosen)
    reference_logprobs = None
    if reference is not None:
        with torch.no_grad():
            reference_logprobs, _ = response_statistics(reference, batch, forward, entropy=False)
    device = batch.tokens.device
    inputs = LossInputs.of(chosen, device, loss, reference_logprobs)
    entropy = any(row.unscored for row in chosen) or inputs.reads_entropies
    backward = _backward_in_chunks if inputs.token_local else _backward_through_all
    with forward.autocast(device):
        hidden = response_states(lm, batch)
        if inputs.reads_vocabulary:
            inputs = inputs.with_vocabulary(vocabulary_logprobs(lm, hidden, forward))
        logprobs, entropies = backward(lm, hidden, batch.targets, inputs, forward, loss, entropy)
    with torch.no_grad():
        _, sums = token_loss(logprobs, entropies, inputs, loss)
    return _Microbatch(indices, batch.real, batch.tokens.numel(), logprobs, entropies, sums)


def _backward_in_chunks(
    lm: Any,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    inputs: LossInputs,
    forward: ForwardSettings,
    loss: LossSettings,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Backward for token-local losses: slopes are known as soon as a chunk's logits are."""

    def slope(logprobs: torch.Tensor, entropies: torch.Tensor | None, tokens: slice) -> tuple[torch.Tensor, ...]:
        leaves = [logprobs] if entropies is None or not inputs.reads_entropies else [logprobs, entropies]
        with torch.enable_grad():
            leaves = [leaf.detach().requires_grad_() for leaf in leaves]
            value, _ = token_loss(leaves[0], leaves[-1] if leaves[1:] else None, inputs.part(tokens), loss)
            if not value.requires_grad:  # no row takes part in a term
                return tuple(torch.zeros_like(leaf) for leaf in leaves)
            return torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)

    logprobs, entropies, injected = chunked_logprobs_and_gradient(
        hidden,
        targets=targets,
        slope=slope,
        entropy=entropy,
        **head_arguments(lm, forward),
    )
    if injected.requires_grad:
        injected.backward()
    return logprobs, entropies


def _backward_through_all(
    lm: Any,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    inputs: LossInputs,
    forward: ForwardSettings,
    loss: LossSettings,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Backward for losses in which tokens of a response depend on each other: slopes need all of its log-probs."""
    logprobs, entropies = chunked_logprobs(
        hidden,
        targets=targets,
        entropy=entropy,
        entropy_gradient=inputs.reads_entropies,
        **head_arguments(lm, forward),
    )
    value, _ = token_loss(logprobs, entropies, inputs, loss)
    if value.requires_grad:
        value.backward()
    return logprobs.detach(), None if entropies is None else entropies.detach()


def _merge(results: Sequence[_Microbatch]) -> UpdateStatistics:
    """Merge the micro-batches' sums in one transfer from the device."""
    names = sorted({name for microbatch in results for name in microbatch.sums})
    if not names:
        return UpdateStatistics()
    merged = []
    for name in names:
        values = torch.stack([microbatch.sums[name].float() for microbatch in results if name in microbatch.sums])
        merged.append(values.max() if name in UpdateStatistics.MAXIMA else values.sum())
    numbers = dict(zip(names, torch.stack(merged).tolist(), strict=True))
    terms = {name: numbers.pop(name) for name in names if "/" in name}
    return UpdateStatistics(**numbers, terms=terms)


def _by_row(
    parts: Sequence[tuple[Sequence[int], torch.Tensor | None]], rows: Sequence[TrainingSample]
) -> dict[int, np.ndarray]:
    """Split the values of response tokens by row: float32 [L] of each unscored row, by its index."""
    kept = [(indices, values) for indices, values in parts if values is not None]
    if not kept:
        return {}
    indices = [index for places, _ in kept for index in places]
    values = torch.cat([values for _, values in kept]).float().cpu().numpy()
    by_row = np.split(values, np.cumsum([rows[index].response_length for index in indices])[:-1])
    if not all(rows[index].unscored for index in indices):  # a view would keep the values of the other rows alive
        by_row = [part.copy() for part in by_row]
    return {index: part for index, part in zip(indices, by_row, strict=True) if rows[index].unscored}
