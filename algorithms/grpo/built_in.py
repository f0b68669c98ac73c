"""Mechanisms that a setting of section `training` switches on: KL in the reward, and a mask of truncated responses."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from algorithms.grpo.mechanism import Group, Mechanism, StepBatch
from algorithms.losses.kl import kl_estimates

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig


HALF_CORRECT = 0.5  # the deviation of as many rewards of 1 as of 0


class KLReward(Mechanism):
    """Takes `training.beta` times the KL of a fresh response's tokens from its reward, by `training.kl_estimator`.

    Replayed responses pay nothing: their log-probs are those of another policy. Where nothing but the KL differs within
    a group, advantages that are divided by its deviation are divided by no less than 0.5, that of a group half of which
    is correct: `beta` would weigh nothing.
    """

    uses_reference = True

    @classmethod
    def is_enabled(cls, settings: Any, config: "BaseConfig") -> bool:
        """Return whether the reward pays."""
        return config.training_settings.kl_in == "reward"

    def normalize(self, group: Group) -> None:
        """Bound what the KL alone may amount to, where advantages are divided by the group's own deviation."""
        from algorithms.grpo.registry import advantage_estimator  # which names this module's mechanisms

        estimator = advantage_estimator(self.services.config.training_settings)
        if estimator.divides_by_own_std(group) and not np.ptp([sample.training_reward for sample in group.samples]):
            group.std_floor = max(group.std_floor, HALF_CORRECT)

    def before_advantages(self, batch: StepBatch) -> None:
        """Set the KL cost of the fresh responses of all groups."""
        training = self.services.config.training_settings
        fresh = [sample for group in batch.groups for sample in group.trained]
        self.services.measure(fresh)
        references = self.services.score_under(fresh, "reference")
        for sample, reference in zip(fresh, references, strict=True):
            if not sample.is_finite:
                continue  # the update skips a policy that overflowed
            own, first = (torch.from_numpy(np.asarray(each, np.float64)) for each in (sample.old_logprobs, reference))
            sample.kl = float(kl_estimates(own, first, training.kl_estimator).sum())
            sample.kl_cost = training.beta * sample.kl


class TruncationMask(Mechanism):
    """Masks the truncated responses of all groups, replayed ones too, after advantages were computed from all rewards.

    Policy gradient, KL penalty and entropy bonus of a masked response are 0. Its tokens are not among those that
    `training.loss_aggregation: token` divides by; `response` and `constant` still count it as one of the responses.

    Source: overlong filtering, DAPO, arXiv 2503.14476, section 3.4; what divides the loss is as in TRL's
    `mask_truncated_completions`.
    """

    tags = {"response/masked": 0.0}

    @classmethod
    def is_enabled(cls, settings: Any, config: "BaseConfig") -> bool:
        """Return whether the setting is on."""
        return config.training_settings.mask_truncated

    def before_update(self, batch: StepBatch) -> None:
        """Mask them, and report their share of the responses to train on."""
        samples = [sample for group in batch.groups for sample in group.samples]
        for sample in samples:
            sample.masked = sample.rollout.truncated
        self.metrics["response/masked"] = sum(sample.masked for sample in samples) / max(1, len(samples))
