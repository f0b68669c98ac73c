"""NGRPO's advantages: a virtual best response in every group, so that a group without a success can teach."""

import numpy as np

from algorithms.grpo.advantages import AdvantageEstimator, group_advantages
from algorithms.grpo.mechanism import Group, Settings, setting
from algorithms.utils.errors import RunError


class NGRPOSettings(Settings):
    """Add a virtual response of the best reward to a group's mean and standard deviation."""

    max_reward: float | None = setting(
        None,
        "Reward of the virtual response, the most that a response can get; null: `1 + reward.length_bonus`, for "
        "environments that pay 1. A response that gets more ends the run.",
    )


class NGRPOAdvantage(AdvantageEstimator):
    """`A_i = (R_i - mean(R ∪ V)) / (std(R ∪ V) + eps)`, where V is `max_reward`.

    In a group of eight failures each gets -0.35. A group without a failure has no virtual response, which would push
    down successes that are paid less than the most: longer ones, with a length bonus.
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

    @classmethod
    def divides_by_own_std(cls, group: Group) -> bool:
        """Return whether there is no virtual response."""
        return group.any_correct

    def advantages(self, group: Group) -> np.ndarray:
        """Return float64 [G]: the virtual response's own is left out.

        Raises:
            RunError: a response got more than the virtual one, which is then not the best.
        """
        rewards, best = self.rewards(group), self.settings.max_reward
        best = self.most_paid if best is None else best
        paid = max((sample.reward for sample in group.trained), default=best)
        if paid > best + 1e-6:  # rounding of a reward that is a sum
            raise RunError(
                f"ngrpo.max_reward: query {group.prompt.uid} was paid {paid:g}, and the virtual best response gets "
                f"{best:g}; fix: set ngrpo.max_reward to the most that the environment pays, length bonus included"
            )
        if group.any_correct and group.homogeneous:
            return group_advantages(rewards, std_scale=group.std_scale, std_floor=group.std_floor)
        extended = np.append(rewards, best)
        scale = np.append(np.broadcast_to(group.std_scale, rewards.shape), 1.0)
        return group_advantages(extended, std_scale=scale, std_floor=group.std_floor)[: len(rewards)]
