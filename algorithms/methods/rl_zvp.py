"""RL-ZVP: learn from groups of equal rewards too, token by token, by the entropy of each sampled token."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.advantages import AdvantageEstimator, group_advantages
from algorithms.grpo.mechanism import Group, Sample, Settings, setting


class ZVPSettings(Settings):
    """Learn from groups that are all correct or all incorrect."""

    alpha: float = setting(0.1, "Factor on the entropies, in advantages per nat.", ge=0)


class ZVPAdvantage(AdvantageEstimator):
    """GRPO's advantages, and in a group of equal rewards one for each token, from entropies H in nats.

    All correct: `A_t = alpha · H_t`. All incorrect: `A_t = -alpha · (max_s H_s - H_t)`, the maximum over the response.
    So forks count most where they led to a success, and least where they led to a failure.

    The entropies are those of the policy that sampled, which one more forward pass over these groups measures. Replayed
    members, whose entropies nobody knows, get 0.

    Source: Eq. 5, arXiv 2509.21880, through two third-party implementations; `alpha` is that of one of them.
    """

    section = "rl_zvp"
    settings_class = ZVPSettings
    per_token = True
    divides_by_std = True
    settings: ZVPSettings

    @classmethod
    def check(cls, settings: ZVPSettings, config: Any) -> None:
        """Raise ConfigError for a KL in the reward, with which no group's rewards are equal."""
        training = config.training_settings
        if training.kl_in == "reward" and training.beta:
            raise ConfigError(
                f"training.beta: {training.beta:g} in the reward leaves no group of equal rewards, which rl_zvp is "
                "for; fix: training.kl_in=loss"
            )

    def needs(self, group: Group) -> Sequence[Sample]:
        """Return the members of a homogeneous group, whose entropies `advantages` reads."""
        return group.fresh if group.homogeneous else []

    def is_informative(self, group: Group) -> bool:
        """Return True: every group teaches something."""
        return True

    def advantages(self, group: Group) -> "np.ndarray | list[np.ndarray]":
        """Return float64 [G], or float32 [L] of each member of a group of equal rewards."""
        rewards = self.rewards(group)
        if not group.homogeneous or (rewards != rewards[0]).any():
            return group_advantages(rewards, std_scale=group.std_scale, std_floor=group.std_floor)
        return [self._token_advantages(sample) for sample in group.samples]

    def _token_advantages(self, sample: Sample) -> np.ndarray:
        if sample.entropies is None:
            return np.zeros(sample.rollout.response_length, np.float32)
        entropies = np.asarray(sample.entropies, np.float32)
        if sample.rollout.correct:
            return np.float32(self.settings.alpha) * entropies
        return np.float32(-self.settings.alpha) * (entropies.max(initial=0.0) - entropies)
