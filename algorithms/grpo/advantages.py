"""Group-relative advantages: Eq. 1 and Eq. 3 of the R³ paper, and those of Dr. GRPO and RLOO."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from algorithms.config.plugins import Plugin
from algorithms.grpo.types import Group, Sample


def group_advantages(
    rewards: np.ndarray, *, std_scale: float | np.ndarray = 1.0, eps: float = 1e-4, std_floor: float = 0.0
) -> np.ndarray:
    """Turn one group's rewards into advantages: `(R - mean) / (std_scale * max(std, std_floor) + eps)`.

    With the defaults this is Eq. 1 (GRPO). Over a group that replay has added to, `std_scale` is the α of
    Eq. 3. A group of equal rewards gets exact zeros, whatever the rounding of its mean.

    Args:
        rewards: [G], one scalar reward per member of the group.
        std_scale: α, the factor on the (floored) standard deviation, or float [G]; not negative.
        eps: λ, added to the denominator; not negative.
        std_floor: the least standard deviation to divide by; 0 is the paper.

    Returns:
        float64 [G]. The standard deviation is the population's (divided by G).

    Raises:
        ValueError: `rewards` is empty, not one-dimensional or not finite, a setting is negative or not
            finite, or the denominator is 0.

    Source: Eq. 1 and Eq. 3, arXiv 2601.19620; the floor is ours.
    """
    rewards = _checked(rewards)
    for name, value in (("std_scale", std_scale), ("eps", eps), ("std_floor", std_floor)):
        if not np.all(np.isfinite(value) & (np.asarray(value) >= 0)):
            raise ValueError(f"{name} must be finite and not negative, got {value}")

    distances = mean_advantages(rewards)
    if not distances.any():
        return distances

    denominator = std_scale * max(float(rewards.std()), std_floor) + eps
    if np.any(denominator == 0.0):
        raise ValueError("the denominator is 0: give std_scale or eps a positive value")
    return distances / denominator


def mean_advantages(rewards: np.ndarray) -> np.ndarray:
    """Take each reward's distance from the mean of its group: no division by the standard deviation.

    Args:
        rewards: [G], one scalar reward per member of the group.

    Returns:
        float64 [G]; exact zeros for equal rewards.

    Raises:
        ValueError: `rewards` is empty, not one-dimensional or not finite.

    Source: Dr. GRPO, arXiv 2503.20783.
    """
    rewards = _checked(rewards)
    # The mean of n equal floats can be off by an ulp, which a small denominator would turn into an advantage.
    if (rewards == rewards[0]).all():
        return np.zeros_like(rewards)
    return rewards - rewards.mean()


def leave_one_out_advantages(rewards: np.ndarray) -> np.ndarray:
    """Take each reward's distance from the mean of the other members: `R_i - Σ_{j≠i} R_j / (G - 1)`.

    Args:
        rewards: [G], one scalar reward per member of the group.

    Returns:
        float64 [G]; 0 for a lone member, which has nothing to be compared with.

    Raises:
        ValueError: `rewards` is empty, not one-dimensional or not finite.

    Source: RLOO, arXiv 2402.14740.
    """
    distances = mean_advantages(rewards)
    # R_i minus the others' mean is G / (G - 1) times R_i minus the mean of all.
    return distances * (len(distances) / max(1, len(distances) - 1))


class AdvantageEstimator(Plugin):
    """Gives the members of a group their advantages; `training.advantage` names one. Derive one of your own from it.

    Attributes:
        divides_by_std: whether it divides by a standard deviation, which `Group.std_scale` and `std_floor` change.
        most_paid: the reward of a correct response of no length, where the environment pays 1: `1 +
            reward.length_bonus`.
    """

    named_in = "training.advantage={}"
    needed = ("advantages",)
    divides_by_std: ClassVar[bool] = False
    most_paid: float = 1.0

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    def advantages(self, group: Group) -> "np.ndarray | list[np.ndarray]":
        """Return float [G], or for each member float32 [L], a value per token.

        Rewards are `sample.training_reward` of `group.samples`.
        """
        raise NotImplementedError

    def needs(self, group: Group) -> Sequence[Sample]:
        """Return the samples whose log-probs and entropies `advantages` reads."""
        return []

    def is_informative(self, group: Group) -> bool:
        """Return whether a homogeneous group has something to teach: dynamic sampling keeps it."""
        return False

    @classmethod
    def divides_by_own_std(cls, group: Group) -> bool:
        """Return whether the deviation that it divides by is that of the group's rewards alone."""
        return cls.divides_by_std

    @staticmethod
    def rewards(group: Group) -> np.ndarray:
        """Return the group's rewards, float64 [G]."""
        return np.array([sample.training_reward for sample in group.samples])


class StdAdvantage(AdvantageEstimator):
    """GRPO's: `group_advantages`."""

    name = "std"
    divides_by_std = True

    def advantages(self, group: Group) -> np.ndarray:
        """Return Eq. 1, or Eq. 3 for a group that a mechanism has changed."""
        return group_advantages(self.rewards(group), std_scale=group.std_scale, std_floor=group.std_floor)


class MeanAdvantage(AdvantageEstimator):
    """Dr. GRPO's: `mean_advantages`."""

    name = "mean"

    def advantages(self, group: Group) -> np.ndarray:
        """Return distances from the mean."""
        return mean_advantages(self.rewards(group))


class LeaveOneOutAdvantage(AdvantageEstimator):
    """RLOO's: `leave_one_out_advantages`."""

    name = "leave_one_out"

    def advantages(self, group: Group) -> np.ndarray:
        """Return distances from the mean of the others."""
        return leave_one_out_advantages(self.rewards(group))


PLAIN: tuple[type[AdvantageEstimator], ...] = (StdAdvantage, MeanAdvantage, LeaveOneOutAdvantage)


def _checked(rewards: np.ndarray) -> np.ndarray:
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.ndim != 1 or rewards.size == 0:
        raise ValueError(f"rewards must be a non-empty 1-D array, got shape {rewards.shape}")
    if not np.isfinite(rewards).all():
        raise ValueError(f"rewards must be finite, got {rewards}")
    return rewards
