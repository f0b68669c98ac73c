"""The policy losses of the GRPO family on flat tensors of response tokens. Sums only: any split of the rows adds up."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

if TYPE_CHECKING:
    from algorithms.config.sections import TrainingSettings


Objective = Literal["clip", "cispo"]
Level = Literal["token", "sequence"]
CorrectionMode = Literal["truncate", "mask"]

# exp(20) is outside any clip range; without a bound float32 overflows and a zero gradient becomes 0 · inf.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class LossSettings:
    """What the loss of an optimizer step is; the fields are those of section `training`.

    Args:
        clip_low: how far below 1 a ratio may fall before it is clipped.
        clip_high: how far above 1 a ratio may rise before it is clipped.
        importance_cap: cap of the importance weights of on-policy tokens; 0: no correction.
        beta: coefficient of the KL penalty; 0: none.
        objective: `clip`: PPO's pessimistic surrogate; `cispo`: the clipped ratio as a constant weight on log-probs.
        ratio_level: `token`, or `sequence`: all tokens of a response share its length-normalized ratio (GSPO).
        dual_clip: bound on the ratio where the advantage is negative; None: none.
        importance_level: whether importance weights are a token's own, or their product over its response.
        importance_mode: whether weights above the cap are set to the cap, or to 0.
        importance_floor: with `mask`, weights below this are set to 0 too.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_cap: float = 2.0
    beta: float = 0.0
    objective: Objective = "clip"
    ratio_level: Level = "token"
    dual_clip: float | None = None
    importance_level: Level = "token"
    importance_mode: CorrectionMode = "truncate"
    importance_floor: float = 0.0

    @classmethod
    def of(cls, training: "TrainingSettings") -> "LossSettings":
        """Take the loss's settings out of section `training`."""
        return cls(**{field.name: getattr(training, field.name) for field in fields(cls)})

    @property
    def token_local(self) -> bool:
        """Whether a token's loss depends on that token's log-prob alone, and never on its neighbors'."""
        return self.ratio_level == "token" and (self.importance_cap == 0 or self.importance_level == "token")


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    *,
    settings: LossSettings,
    lengths: Sequence[int],
    importance: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sum the loss of weighted tokens: `-min(r·A, clip(r)·A)`, or CISPO's `-sg(clip(r))·A·logprob`.

    `clip` bounds to `[1 - clip_low, 1 + clip_high]`, `sg` stops gradients. `r` is the token's ratio
    `exp(logprobs - old_logprobs)`, or with `ratio_level="sequence"` the exponential of its mean over the response.
    With `dual_clip = c`, tokens of negative advantage count at most `c·|A|`. Gradients flow through `logprobs`
    alone; a ratio above exp(20) has none.

    Args:
        logprobs: float [N], log-probs under the policy being trained, response after response.
        old_logprobs: float [N], behavior log-probs: this step's, or those stored with a replayed response.
        advantages: float [N], the advantage of each token's response.
        weights: float [N], what each token counts for (`normalization.loss_weights`).
        settings: which loss.
        lengths: tokens of each response, in order; they add up to N.
        importance: float [N], of `importance_weights`; 1 for replayed rows. None: all 1.

    Returns:
        The loss, a scalar to minimize, and detached unweighted sums over the N tokens: `tokens`, `clipped` (tokens
        whose gradient the clip took away, or for CISPO bounded), `ratio`, `ratio_deviation` (|r - 1|) and `kl` (k3 of
        the token's own ratio: the distance from the behavior policy).

    Raises:
        ValueError: the tensors do not share one 1-D shape, or `lengths` do not add up to it.

    Source: Eq. 2, arXiv 2601.19620; PPO, arXiv 1707.06347; GSPO, arXiv 2507.18071; CISPO, arXiv 2506.13585; dual clip,
        arXiv 1912.09729.
    """
    check_flat(logprobs, old_logprobs, advantages, weights, *([] if importance is None else [importance]))
    if sum(lengths) != len(logprobs):
        raise ValueError(f"lengths add up to {sum(lengths)}, there are {len(logprobs)} tokens")
    advantages = advantages.detach()
    token_log_ratio = logprobs - old_logprobs.detach()
    log_ratio = token_log_ratio if settings.ratio_level == "token" else over_rows(torch.mean, token_log_ratio, lengths)
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    objective, clipped = _OBJECTIVES[settings.objective](ratio, logprobs, advantages, settings)
    scale = weights.detach() if importance is None else weights.detach() * importance.detach()
    loss = -(scale * objective).sum()
    with torch.no_grad():
        bounded = token_log_ratio.clamp(max=MAX_LOG_RATIO)
        sums = {
            "tokens": torch.tensor(float(logprobs.numel()), device=logprobs.device),
            "clipped": clipped.float().sum(),
            "ratio": ratio.sum(),
            "ratio_deviation": (ratio - 1.0).abs().sum(),
            "kl": (bounded.exp() - 1.0 - bounded).sum(),
        }
    return loss, {name: value.detach() for name, value in sums.items()}


def _clipped_surrogate(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    unclipped = ratio * advantages
    clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high) * advantages
    objective, silenced = torch.minimum(unclipped, clipped), clipped < unclipped
    if settings.dual_clip is not None:
        floor = settings.dual_clip * advantages
        beyond = (advantages < 0) & (objective < floor)
        objective, silenced = torch.where(beyond, floor, objective), silenced | beyond
    return objective, silenced


def _weighted_logprobs(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    ratio = ratio.detach()
    bounded = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    return bounded * advantages * logprobs, bounded != ratio


_OBJECTIVES = {"clip": _clipped_surrogate, "cispo": _weighted_logprobs}


def kl_penalty(logprobs: torch.Tensor, reference_logprobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum the k3 estimate of KL(policy ‖ reference) over tokens, with their weights.

    `k3 = exp(d) - d - 1` with `d = reference - policy`: never negative, unbiased, of low variance. Give
    replayed tokens weight 0: they were not drawn from the policy.

    Args:
        logprobs: float [N], under the policy being trained.
        reference_logprobs: float [N], under the frozen reference.
        weights: float [N], what each token counts for.

    Returns:
        A scalar; its gradient flows through `logprobs` alone.

    Raises:
        ValueError: the tensors do not share one 1-D shape.

    Source: J. Schulman, "Approximating KL divergence", 2020; DeepSeekMath, arXiv 2402.03300.
    """
    check_flat(logprobs, reference_logprobs, weights)
    difference = (reference_logprobs.detach() - logprobs).clamp(max=MAX_LOG_RATIO)
    return (weights.detach() * (difference.exp() - difference - 1.0)).sum()


def over_rows(
    reduce: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor, lengths: Sequence[int]
) -> torch.Tensor:
    """Give every token what `reduce` makes of its row: float [N] to float [N]. Deterministic, gradients included."""
    parts = values.split(list(lengths))
    return torch.cat([reduce(part).expand(len(part)) for part in parts if len(part)] or [values])


def check_flat(*tensors: torch.Tensor) -> None:
    """Refuse shapes that broadcasting would silently blow up to [N, N].

    Raises:
        ValueError: the tensors do not share one 1-D shape.
    """
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"expected flat tensors of one length, got shapes {shapes}")


def importance_weights(
    trainer_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor, *, settings: LossSettings, lengths: Sequence[int]
) -> torch.Tensor:
    """Weigh on-policy tokens by `π_trainer / π_engine`, bounded.

    Level `token` takes each token's own ratio, `sequence` the product over its response for all its tokens. Mode
    `truncate` sets a ratio above the cap to the cap; `mask` sets one above the cap, or below the floor, to 0.

    Args:
        trainer_logprobs: float [N], the trainer's before the step, response after response.
        sampling_logprobs: float [N], the engine's. Replayed rows take no such weight: see the caller.
        settings: `importance_cap` (positive), `importance_level`, `importance_mode`, `importance_floor`.
        lengths: tokens of each response, in order; they add up to N.

    Returns:
        float [N], detached.

    Raises:
        ValueError: the cap is not positive, or the tensors do not share one 1-D shape.

    Source: F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025 (truncation);
        J. Liu et al., "When speed kills stability", 2025 (sequences, masking); IcePop, arXiv 2510.18855 (two bounds).
    """
    check_flat(trainer_logprobs, sampling_logprobs)
    if settings.importance_cap <= 0:
        raise ValueError(f"importance_cap must be positive, got {settings.importance_cap}")
    log_ratio = (trainer_logprobs - sampling_logprobs).detach()
    if settings.importance_level == "sequence":
        log_ratio = over_rows(torch.sum, log_ratio, lengths)
    ratio = log_ratio.exp()
    if settings.importance_mode == "truncate":
        return ratio.clamp(max=settings.importance_cap)
    inside = (ratio >= settings.importance_floor) & (ratio <= settings.importance_cap)
    return torch.where(inside, ratio, torch.zeros_like(ratio))


def bounded_tokens(
    trainer_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor, *, settings: LossSettings, lengths: Sequence[int]
) -> int:
    """Count the tokens whose importance weight a bound has changed; arguments as of `importance_weights`."""
    weights = importance_weights(trainer_logprobs, sampling_logprobs, settings=settings, lengths=lengths)
    free = replace(settings, importance_cap=math.inf, importance_mode="truncate")
    unbounded = importance_weights(trainer_logprobs, sampling_logprobs, settings=free, lengths=lengths)
    return int((weights != unbounded).sum())


LossAggregation = Literal["token", "response", "constant"]


def loss_weights(
    lengths: np.ndarray, group_ids: np.ndarray, *, loss_aggregation: LossAggregation, max_response_tokens: int
) -> np.ndarray:
    """Weigh one response token of each row, over all rows of one optimizer step.

    The weights are computed before the rows are cut into micro-batches or dealt out to learners, so that
    summing `weight * token loss` anywhere, in any order, gives the loss of the whole step.

    Args:
        lengths: integer [B], response tokens of each row.
        group_ids: integer [B], which group each row belongs to.
        loss_aggregation: `token`: every token counts the same (DAPO); `response`: mean over a response's tokens,
            then over its group, then over the groups (Eq. 2); `constant`: token sum divided by rows ×
            `max_response_tokens` (Dr. GRPO).
        max_response_tokens: the length limit of a response; only `constant` reads it.

    Returns:
        float64 [B]. A row without tokens gets 0; it still counts as a member of its group.

    Raises:
        ValueError: shapes differ, a length is negative, or a setting is out of range.

    Source: Eq. 2, arXiv 2601.19620; DAPO, arXiv 2503.14476; Dr. GRPO, arXiv 2503.20783.
    """
    lengths, group_ids = np.asarray(lengths), np.asarray(group_ids)
    if lengths.ndim != 1 or lengths.shape != group_ids.shape:
        raise ValueError(f"lengths and group_ids must be 1-D and alike: {lengths.shape}, {group_ids.shape}")
    if (lengths < 0).any():
        raise ValueError(f"lengths must not be negative, got {lengths.min()}")

    divisors: np.ndarray
    if loss_aggregation == "token":
        divisors = np.full(len(lengths), float(lengths.sum()))
    elif loss_aggregation == "response":
        _, group_of_row, group_sizes = np.unique(group_ids, return_inverse=True, return_counts=True)
        divisors = lengths.astype(np.float64) * group_sizes[group_of_row] * len(group_sizes)
    elif loss_aggregation == "constant":
        if max_response_tokens < 1:
            raise ValueError(f"max_response_tokens must be at least 1, got {max_response_tokens}")
        divisors = np.full(len(lengths), float(len(lengths) * max_response_tokens))
    else:
        raise ValueError(f"loss_aggregation must be token, response or constant, got {loss_aggregation!r}")
    return np.divide(1.0, divisors, out=np.zeros(len(lengths)), where=lengths > 0)
