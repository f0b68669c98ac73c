"""W-REINFORCE: reinforce successes a little and failures fully, without a baseline; PSR and NSR are its halves."""

import numpy as np

from algorithms.grpo.advantages import AdvantageEstimator
from algorithms.grpo.mechanism import Group, Settings, setting
from algorithms.utils.errors import RunError


class _Weighted(AdvantageEstimator):
    """`weights[0] · R` of a correct response, `weights[1] · (R - 1)` of an incorrect one, whatever the group.

    So a failure is pushed down only where it is paid less than 1: an environment that pays one more is refused.
    """

    weights: tuple[float, float]

    def is_informative(self, group: Group) -> bool:
        """Return whether a response of the group has a weight."""
        positive, negative = self.weights
        return any((positive if sample.rollout.correct else negative) > 0 for sample in group.samples)

    def advantages(self, group: Group) -> np.ndarray:
        """Return float64 [G].

        Raises:
            RunError: an incorrect response was paid more than 1.
        """
        (positive, negative), rewards = self.weights, self.rewards(group)
        correct = np.array([sample.rollout.correct for sample in group.samples])
        for sample, is_correct in zip(group.samples, correct, strict=True):
            sample.optional |= not (positive if is_correct else negative)
            if not is_correct and sample.reward > 1:
                raise RunError(
                    f"training.advantage: an incorrect response to query {group.prompt.uid} was paid {sample.reward:g},"
                    " and W-REINFORCE and its halves take a reward of 1 for the best; fix: training.advantage=std, or "
                    "an environment that pays at most 1"
                )
        return np.where(correct, positive * rewards, negative * (rewards - 1.0))


class WReinforceSettings(Settings):
    """Weigh successes and failures separately."""

    positive: float = setting(0.1, "Weight of successes, the paper's λ.", ge=0)
    negative: float = setting(1.0, "Weight of failures.", ge=0)


class WReinforceAdvantage(_Weighted):
    """`positive · R` of a correct response and `negative · (R - 1)` of an incorrect one: λ and -1 for rewards 1 and 0.

    There is no baseline and no deviation, so every group teaches something. A response of weight 0 is left out of the
    loss and of what divides it, as in the authors' code.

    Source: arXiv 2506.01347; the authors' code, which applies the weights to the rewards in the same way.
    """

    section = "w_reinforce"
    settings_class = WReinforceSettings

    def __init__(self, settings: WReinforceSettings) -> None:
        super().__init__(settings)
        self.weights = (settings.positive, settings.negative)


class PSRAdvantage(_Weighted):
    """Positive sample reinforcement: `R` of a correct response, 0 of an incorrect one. Source: arXiv 2506.01347."""

    name = "psr"
    weights = (1.0, 0.0)


class NSRAdvantage(_Weighted):
    """Negative sample reinforcement: 0 of a correct response, `R - 1` of an incorrect one. Source: arXiv 2506.01347."""

    name = "nsr"
    weights = (0.0, 1.0)
