"""The clipped policy loss on flat tensors of response tokens. Sums only: any split of the tokens adds up."""

import torch

# exp(20) is outside any clip range; without a bound float32 overflows and a zero gradient becomes 0 · inf.
MAX_LOG_RATIO = 20.0


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sum the clipped surrogate `-min(r·A, clip(r, 1-clip_low, 1+clip_high)·A)` over weighted tokens.

    `r = exp(logprobs - old_logprobs)` is a token's ratio. Gradients flow through `logprobs` alone. A token
    whose ratio exceeds exp(20) gets no gradient.

    Args:
        logprobs: float [N], log-probs under the policy being trained.
        old_logprobs: float [N], behaviour log-probs: this step's, or those stored with a replayed response.
        advantages: float [N], the advantage of each token's response.
        weights: float [N], what each token counts for (`normalisation.loss_weights`).
        clip_low: how far below 1 a ratio may fall before it stops paying.
        clip_high: how far above 1 a ratio may rise before it stops paying.
        is_weights: float [N], truncated importance weights; 1 for replayed rows. None: all 1.

    Returns:
        The loss, a scalar to minimise, and detached unweighted sums over the N tokens: `tokens`, `clipped`
        (tokens that the clip silenced), `ratio`, `ratio_deviation` (|r - 1|) and `kl` (`r - 1 - log r`, the
        distance from the behaviour policy).

    Raises:
        ValueError: the tensors do not share one 1-D shape.

    Source: Eq. 2, arXiv 2601.19620, with the ratio per token; PPO, arXiv 1707.06347.
    """
    _check_flat(logprobs, old_logprobs, advantages, weights, *([] if is_weights is None else [is_weights]))
    advantages = advantages.detach()
    log_ratio = (logprobs - old_logprobs.detach()).clamp(max=MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    scale = weights.detach() if is_weights is None else weights.detach() * is_weights.detach()
    loss = -(scale * torch.minimum(unclipped, clipped)).sum()
    with torch.no_grad():
        sums = {
            "tokens": torch.tensor(float(logprobs.numel()), device=logprobs.device),
            "clipped": (clipped < unclipped).float().sum(),
            "ratio": ratio.sum(),
            "ratio_deviation": (ratio - 1.0).abs().sum(),
            "kl": (ratio - 1.0 - log_ratio).sum(),
        }
    return loss, {name: value.detach() for name, value in sums.items()}


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
    _check_flat(logprobs, reference_logprobs, weights)
    difference = (reference_logprobs.detach() - logprobs).clamp(max=MAX_LOG_RATIO)
    return (weights.detach() * (difference.exp() - difference - 1.0)).sum()


def truncated_importance_weights(
    trainer_logprobs: torch.Tensor, engine_logprobs: torch.Tensor, cap: float
) -> torch.Tensor:
    """Weigh on-policy tokens by `min(π_trainer / π_engine, cap)`, where the engine's log-probs differ.

    Args:
        trainer_logprobs: float [N], the trainer's, under the weights that the engine sampled with.
        engine_logprobs: float [N], the engine's.
        cap: the largest weight, positive. Replayed rows take no such weight.

    Returns:
        float [N], detached.

    Raises:
        ValueError: `cap` is not positive, or the tensors do not share one 1-D shape.

    Source: F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025.
    """
    _check_flat(trainer_logprobs, engine_logprobs)
    if cap <= 0:
        raise ValueError(f"cap must be positive, got {cap}")
    return (trainer_logprobs - engine_logprobs).detach().exp().clamp(max=cap)


def _check_flat(*tensors: torch.Tensor) -> None:
    """Refuse shapes that broadcasting would silently blow up to [N, N]."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"expected flat tensors of one length, got shapes {shapes}")
