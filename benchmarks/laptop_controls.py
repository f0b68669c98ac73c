"""Rewards that could explain a gain without the task: the task's own, dealt out at random, and one for finishing.

python -m algorithms.grpo --config configs/laptop.yaml 'training.mechanisms=[benchmarks.laptop_controls:Permuted]'
"""

from algorithms.grpo.mechanism import Group, Mechanism


class Permuted(Mechanism):
    """Deals the rewards of a group out among its responses at random: as many, as large, for nothing."""

    def rewards(self, group: Group) -> None:
        """Give each fresh response the reward of one of them."""
        rng = self.services.rng(f"permuted/{group.prompt.uid}", self.services.step)
        rewards = [sample.reward for sample in group.fresh]
        for sample, place in zip(group.fresh, rng.permutation(len(rewards)), strict=True):
            sample.shaped_reward = rewards[place]


class Finishing(Mechanism):
    """Pays 1 for a response that ends within the length limit, whatever it says, and 0 for one that does not."""

    def rewards(self, group: Group) -> None:
        """Pay each fresh response."""
        for sample in group.fresh:
            sample.shaped_reward = float(not sample.rollout.truncated)
