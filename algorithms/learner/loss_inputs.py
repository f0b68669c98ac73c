"""What the loss knows of each response token, flat over the rows of a micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from algorithms.learner.batch import TrainingSample, flat, per_token
from algorithms.learner.loss import LossSettings, importance_weights, kl_penalty, policy_loss


@dataclass(frozen=True)
class LossInputs:
    """Constants of the loss, each [N] over the response tokens of all rows, in order.

    Args:
        behavior: float32; NaN stands for the policy's own log-prob.
        engine: float32; NaN for replayed rows, which have none.
        advantages: float32.
        weights: float32, what a token counts for.
        reference: float32 log-probs of the KL term's frozen policy; None without that term.
        lengths: response tokens of each row.
    """

    behavior: torch.Tensor
    engine: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    reference: torch.Tensor | None
    lengths: tuple[int, ...]

    @classmethod
    def of(
        cls, rows: Sequence[TrainingSample], device: torch.device, reference: torch.Tensor | None = None
    ) -> "LossInputs":
        """Lay the rows' numbers out."""
        return cls(
            behavior=flat([_or_nan(row.old_logprobs, row) for row in rows], device),
            engine=flat([_or_nan(row.sampling_logprobs, row) for row in rows], device),
            advantages=per_token([row.advantage for row in rows], rows, device),
            weights=per_token([row.weight for row in rows], rows, device),
            reference=reference,
            lengths=tuple(row.response_length for row in rows),
        )

    def part(self, tokens: slice) -> "LossInputs":
        """Some of the tokens, for losses that see each token by itself: row boundaries are lost."""
        behavior = self.behavior[tokens]
        return LossInputs(
            behavior,
            self.engine[tokens],
            self.advantages[tokens],
            self.weights[tokens],
            None if self.reference is None else self.reference[tokens],
            (len(behavior),),
        )


def token_loss(
    logprobs: torch.Tensor, terms: LossInputs, settings: LossSettings
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of tokens, and detached sums over them for the log.

    Args:
        logprobs: float32 [N], the policy's; the loss is differentiable in them.
        terms: of the same tokens.
        settings: which loss.

    Returns:
        A scalar to minimize, and `loss`, `kl` (weighted sums), `clipped` (tokens), `max_logp_mismatch` (of
        the log-probs of policy and engine, over rows that no scoring pass has measured) and `max_ratio_deviation`
        (of the ratio from 1).
    """
    own = logprobs.detach()
    no_behavior, on_policy = terms.behavior.isnan(), ~terms.engine.isnan()
    behavior = torch.where(no_behavior, own, terms.behavior)
    engine = torch.where(on_policy, terms.engine, behavior)
    importance = None
    if settings.importance_cap > 0:
        importance = importance_weights(behavior, engine, settings=settings, lengths=terms.lengths)
        importance = torch.where(on_policy, importance, torch.ones_like(importance))
    value, sums = policy_loss(
        logprobs,
        behavior,
        terms.advantages,
        terms.weights,
        settings=settings,
        lengths=terms.lengths,
        importance=importance,
    )
    kl = torch.zeros_like(value)
    if terms.reference is not None:
        kl = kl_penalty(logprobs, terms.reference, terms.weights * on_policy)
        value = value + settings.beta * kl
    measured = (own - engine).abs() * (no_behavior & on_policy)
    return value, {
        "loss": value.detach(),
        "clipped": sums["clipped"],
        "kl": kl.detach(),
        "max_logp_mismatch": measured.max(),
        "max_ratio_deviation": (own - behavior).exp().sub(1).abs().max(),
    }


def _or_nan(values: np.ndarray | None, row: TrainingSample) -> np.ndarray:
    return np.full(row.response_length, np.nan, np.float32) if values is None else values
