"""NGRPO's advantages: a virtual best response in every group, so that a group without a success can teach."""

import numpy as np

from algorithms.grpo.advantages import AdvantageEstimator, group_advantages
from algorithms.grpo.mechanism import Group, Settings, setting


class NGRPOSettings(Settings):
    """Add virtual responses of the best reward to a group's mean and standard deviation."""

    max_reward: float = setting(1.0, "Reward of the virtual response: the most that a response can get.")
    count: int = setting(1, "Virtual responses per group.", ge=1)


class NGRPOAdvantage(AdvantageEstimator):
    """`A_i = (R_i - mean(R ∪ V)) / (std(R ∪ V) + eps)`, where V holds `count` rewards of `max_reward`.

    In a group of eight failures each gets -0.35. In a group without a failure, at `max_reward`, nothing changes: zeros.
    The paper's other half, the narrower clip of negative advantages, is `clip_low` 0.16 and `clip_high` 0.24.

    The deviation is the population's, as in all of this library; the authors' code divides by n - 1.

    Source: NGRPO, arXiv 2509.18851; the authors' code.
    """

    section = "ngrpo"
    settings_class = NGRPOSettings
    divides_by_std = True
    settings: NGRPOSettings

    def is_informative(self, group: Group) -> bool:
        """Return whether the group has no success: the virtual one is its opposite."""
        return not group.any_correct

    def advantages(self, group: Group) -> np.ndarray:
        """Return float64 [G]: the virtual responses' own are left out."""
        rewards, count = self.rewards(group), self.settings.count
        extended = np.append(rewards, np.full(count, self.settings.max_reward))
        scale = np.append(np.broadcast_to(group.std_scale, rewards.shape), np.ones(count))
        return group_advantages(extended, std_scale=scale, std_floor=group.std_floor)[: len(rewards)]
