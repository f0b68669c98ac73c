"""`training.kl_in: reward`: subtract the KL from the initial model from rewards before advantages are computed."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from algorithms.grpo.mechanism import Mechanism, StepBatch
from algorithms.losses.kl import kl_estimates

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig


class KLReward(Mechanism):
    """Takes `training.beta` times the KL of a fresh response's tokens from its reward, by `training.kl_estimator`.

    Replayed responses pay nothing: their log-probs are those of another policy.
    """

    uses_reference = True

    @classmethod
    def is_enabled(cls, settings: Any, config: "BaseConfig") -> bool:
        """Return whether the reward pays."""
        return config.training_settings.kl_in == "reward"

    def before_advantages(self, batch: StepBatch) -> None:
        """Set the KL cost of the fresh responses of all groups."""
        training = self.services.config.training_settings
        fresh = [sample for group in batch.groups for sample in group.trained]
        self.services.measure(fresh)
        references = self.services.score_under(fresh, "reference")
        for sample, reference in zip(fresh, references, strict=True):
            own, first = (torch.from_numpy(np.asarray(each, np.float64)) for each in (sample.old_logprobs, reference))
            sample.kl = float(kl_estimates(own, first, training.kl_estimator).sum())
            sample.kl_cost = training.beta * sample.kl
