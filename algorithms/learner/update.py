"""Accumulate the gradient of one optimizer step over micro-batches. Plain PyTorch: no Ray, no config object."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import nn

from algorithms.grpo.loss import LossSettings, kl_penalty, policy_loss
from algorithms.grpo.off_policy import importance_weights
from algorithms.learner.packing import microbatches
from algorithms.learner.policy import ForwardSettings, response_statistics
from algorithms.learner.rows import PaddedBatch, TrainingRow, flat, per_token


@dataclass
class UpdateStatistics:
    """Sums over the response tokens of an update, and two maxima; those of several learners merge."""

    loss: float = 0.0
    tokens: float = 0.0
    trained_tokens: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    entropy_tokens: float = 0.0
    max_logp_mismatch: float = 0.0
    max_ratio_deviation: float = 0.0
    grad_norm: float = 0.0
    skipped_steps: float = 0.0

    MAXIMA = ("max_logp_mismatch", "max_ratio_deviation", "grad_norm", "skipped_steps")

    def merge(self, other: "UpdateStatistics") -> "UpdateStatistics":
        """Add sums, take the larger maxima."""
        merged = {}
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            merged[field.name] = max(mine, theirs) if field.name in self.MAXIMA else mine + theirs
        return UpdateStatistics(**merged)


def accumulate_gradients(
    lm: nn.Module,
    rows: Sequence[TrainingRow],
    forward: ForwardSettings,
    loss: LossSettings,
    reference: nn.Module | None = None,
) -> UpdateStatistics:
    """Add the gradient of these rows' share of the step's loss to `lm`'s parameters.

    The rows' weights are already normalised over the whole optimizer step, so that micro-batches and learners add
    up. Rows without advantage get a forward pass for the statistics only.

    Args:
        lm: the policy; its gradients are added to.
        rows: this learner's share of one optimizer step.
        forward: how the policy is evaluated.
        loss: the loss's settings.
        reference: the frozen policy of the KL term; needed when `loss.beta` is above 0.
    """
    device = next(lm.parameters()).device
    total = UpdateStatistics()
    active = [row for row in rows if _has_gradient(row, loss)]
    silent = [row for row in rows if not _has_gradient(row, loss)]
    for some, train in ((active, True), (silent, False)):
        for indices in microbatches([len(row.tokens) for row in some], forward.token_budget):
            chosen = [row for row in (some[i] for i in indices) if row.response_length]
            if chosen:
                with torch.set_grad_enabled(train):
                    total = total.merge(_microbatch(lm, chosen, forward, loss, reference, device))
    return total


def _has_gradient(row: TrainingRow, loss: LossSettings) -> bool:
    return row.advantage != 0.0 or (loss.beta > 0 and row.on_policy)


def _microbatch(
    lm: nn.Module,
    rows: Sequence[TrainingRow],
    forward: ForwardSettings,
    loss: LossSettings,
    reference: nn.Module | None,
    device: torch.device,
) -> UpdateStatistics:
    batch = PaddedBatch.of(rows, device)
    logprobs, entropies = response_statistics(lm, batch, forward, entropy=True)
    assert entropies is not None  # asked for above; narrows the type
    own = logprobs.detach()
    lengths = [row.response_length for row in rows]
    old = _given_or(own, [row.behaviour_logprobs for row in rows], rows)
    engine = _given_or(own, [row.engine_logprobs for row in rows], rows)
    on_policy = per_token([row.on_policy for row in rows], rows, device)
    weights = per_token([row.weight for row in rows], rows, device)
    advantages = per_token([row.advantage for row in rows], rows, device)
    importance = None
    if loss.is_cap > 0:
        importance = importance_weights(old, engine, settings=loss, lengths=lengths)
        importance = torch.where(on_policy > 0, importance, torch.ones_like(importance))

    value, sums = policy_loss(
        logprobs,
        old,
        advantages,
        weights,
        settings=loss,
        lengths=lengths,
        is_weights=importance,
    )
    kl = 0.0
    if loss.beta > 0 and reference is not None:
        with torch.no_grad():
            reference_logprobs, _ = response_statistics(reference, batch, forward, entropy=False)
        penalty = kl_penalty(logprobs, reference_logprobs, weights * on_policy)
        value, kl = value + loss.beta * penalty, float(penalty.detach())
    if value.requires_grad:
        value.backward()
    return UpdateStatistics(
        loss=float(value.detach()),
        tokens=float(len(own)),
        trained_tokens=float(len(own)) if value.requires_grad else 0.0,
        clipped=float(sums["clipped"]),
        kl=kl,
        entropy=float((entropies * on_policy).sum()),
        entropy_tokens=float(on_policy.sum()),
        max_logp_mismatch=float(((own - engine).abs() * on_policy).max()),
        max_ratio_deviation=float((own - old).exp().sub(1).abs().max()),
    )


def _given_or(own: torch.Tensor, given: Sequence[np.ndarray | None], rows: Sequence[TrainingRow]) -> torch.Tensor:
    """The log-probs that rows came with, and the policy's own, float32 [N], where they came with none."""
    parts = own.split([row.response_length for row in rows])
    return torch.cat(
        [part if values is None else flat([values], own.device) for part, values in zip(parts, given, strict=True)]
    )
