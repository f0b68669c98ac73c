"""`training.mask_truncated`: leave truncated responses out of the loss, and their rewards in the baseline."""

from typing import TYPE_CHECKING, Any

from algorithms.grpo.mechanism import Mechanism, StepBatch

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig


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
