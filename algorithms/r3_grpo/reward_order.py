"""A warning when an environment pays a correct answer no more than ranking pays a cut-off one."""

from collections.abc import Sequence

from algorithms.grpo.groups import Group
from algorithms.r3_grpo.ranking import SHIFTS
from algorithms.r3_grpo.settings import RankingSettings


class RewardOrderWatch:
    """Compares what correct responses earned with what the best rank earns; settings alone cannot tell.

    Args:
        ranking: section `ranking`.
    """

    def __init__(self, ranking: RankingSettings) -> None:
        self._best_rank = ranking.max_reward * (1.0 - SHIFTS[ranking.baseline])
        self._told = not ranking.enabled

    def observe(self, groups: Sequence[Group]) -> str | None:
        """Look at a step's groups with their shaped rewards; returns a warning, once, or None."""
        rewards = [sample.reward for group in groups for sample in group.samples if sample.rollout.correct]
        least = min(rewards, default=None)
        if self._told or least is None or least > self._best_rank:
            return None
        self._told = True
        return (
            f"a correct response earned {least:g}, and the best of those that are cut off earns {self._best_rank:g}: "
            "a policy may learn to run on; lower ranking.max_reward, let the environment pay more for correct "
            "answers, or lower reward.overlong_penalty"
        )
