"""The KL penalty: estimates of the divergence from a reference, from the log-probs of sampled tokens only."""

from typing import Literal

import torch

from algorithms.config.schema import Settings, setting
from algorithms.losses.base import MAX_LOG_RATIO, LossTerm, check_flat

Estimator = Literal["k1", "k2", "k3"]


class KLSettings(Settings):
    """The penalty, as section `training` has it."""

    coefficient: float = setting(0.0, "`training.beta`.", ge=0)
    estimator: Estimator = setting("k3", "`training.kl_estimator`.")


class KL(LossTerm):
    """An estimate of KL(policy ‖ reference) at each token that the policy sampled."""

    name = "kl"
    settings_class = KLSettings
    settings: KLSettings

    @property
    def coefficient(self) -> float:
        """`training.beta`."""
        return self.settings.coefficient

    def token_loss(self, logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
        """Return the estimates, float [N]."""
        return kl_estimates(logprobs, reference_logprobs, self.settings.estimator)


def kl_estimates(logprobs: torch.Tensor, reference_logprobs: torch.Tensor, estimator: Estimator = "k3") -> torch.Tensor:
    """Estimate KL(policy ‖ reference) from each token: with `d = reference - policy`, one of three.

    `k1 = -d`: unbiased, of high variance; in a loss its expected gradient is 0. `k2 = d² / 2`: biased; in a loss its
    expected gradient is the KL's. `k3 = exp(d) - d - 1`: unbiased, never negative, of low variance; in a loss its
    expected gradient is that of KL(reference ‖ policy).

    Args:
        logprobs: float [N], under the policy.
        reference_logprobs: float [N], under the frozen reference.
        estimator: which.

    Returns:
        float [N], in nats; differentiable in `logprobs` alone.

    Raises:
        ValueError: the tensors do not share one 1-D shape, or there is no such estimator.

    Source: J. Schulman, "Approximating KL divergence", 2020; DeepSeekMath, arXiv 2402.03300 (k3 in the loss).
    """
    check_flat(logprobs, reference_logprobs)
    difference = reference_logprobs.detach() - logprobs
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference.square()
    if estimator == "k3":
        difference = difference.clamp(max=MAX_LOG_RATIO)
        return difference.exp() - difference - 1.0
    raise ValueError(f"estimator must be k1, k2 or k3, got {estimator!r}")
