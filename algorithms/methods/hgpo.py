"""HGPO: compare turns that answer the same state, at several depths of history; GiGPO uses no history."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.advantages import AdvantageEstimator, group_advantages, mean_advantages
from algorithms.grpo.mechanism import Group, Sample, Settings, setting
from algorithms.grpo.rewards import added_rewards
from algorithms.rollout.types import Turn

EPS = 1e-6
Place = tuple[int, int]  # a member of the group, and a turn of it


class HGPOSettings(Settings):
    """Compare turns that start from the same state, and from the same states before it."""

    history: int = setting(
        2, "K: how many earlier states two turns may be required to share; 0: GiGPO's step term.", ge=0
    )
    discount: float = setting(0.95, "Discount of the next turn's return in a turn's return.", ge=0, le=1)
    power: float = setting(1.0, "α: a comparison of turns that share k earlier states has the weight (k + 1)^α.", ge=0)
    normalize: Literal["std", "mean"] = setting(
        "std", "Whether distances from the mean are divided by the standard deviation."
    )
    episode_weight: float = setting(
        0.0, "Weight of the whole response's own advantage, added to the turn's; GiGPO's is 1.", ge=0
    )


class HGPOAdvantage(AdvantageEstimator):
    """`A = Σ_k w_k A_k + episode_weight · A_episode` for all tokens of a turn; `A_k` compares discounted returns.

    Turn t of a response has the return `R_t = Σ_j discount^(j-t) r_j` over the rewards of its turns from t on. At depth
    k it is compared with all turns of the group that answer the same state and have the same k states before it:
    `A_k = (R - mean) / (std + 1e-6)`, the population's deviation. `w_k` is in proportion to `(k + 1)^power` over the
    depths where a turn has others and A_k is not 0. `A_episode` compares the responses' rewards, as GRPO or, with
    `normalize: mean`, Dr. GRPO does.

    States are the environment's `info["state"]`; a first turn without one answers its query, so that a task of one turn
    is GRPO's. A later turn without a state, and a stored response, which has no turns, get the episode's part alone.
    A summary counts as a turn of reward 0. Rewards of turns are the environment's own: shaping reaches only the
    episode's part.

    Source: HGPO, arXiv 2602.22817, through notes on Eq. 7 and two copies of the authors' file, one of which counts
    exponents from k + 2. GiGPO, arXiv 2505.10978, through copies of the authors' file: `history: 0`,
    `episode_weight: 1`; `normalize: mean` is its other mode, and its deviation the sample's. The originals train each
    turn as a sequence of its own; here it is part of its episode's.
    """

    section = "hgpo"
    settings_class = HGPOSettings
    per_token = True
    settings: HGPOSettings

    @classmethod
    def check(cls, settings: HGPOSettings, config: Any) -> None:
        """Raise ConfigError for rewards that only the response's own advantage would read, where it weighs nothing."""
        fixes = [fix for *_, fix in added_rewards(config)]
        fixes += ["ranking.enabled=false"] if "ranking" in config.enabled_mechanisms() else []
        if fixes and not settings.episode_weight:
            name = fixes[0].partition("=")[0]
            raise ConfigError(
                f"{name}: has no effect with hgpo.episode_weight=0, which compares the rewards of turns alone; "
                f"fix: {fixes[0]}, or hgpo.episode_weight=1"
            )

    def is_informative(self, group: Group) -> bool:
        """Return whether turns of the group differ, whatever came of them in the end."""
        return any(self._turn_advantages(group).values())

    @classmethod
    def divides_by_own_std(cls, group: Group) -> bool:
        """Return True: the whole responses' advantages are GRPO's."""
        return True

    def advantages(self, group: Group) -> list[np.ndarray]:
        """Return float32 [L] of each member."""
        rewards, weight = self.rewards(group), self.settings.episode_weight
        if self.settings.normalize == "mean":
            episodes = mean_advantages(rewards)
        else:
            episodes = group_advantages(rewards, std_scale=group.std_scale, std_floor=group.std_floor)
        by_place, found = self._turn_advantages(group), []
        for member, sample in enumerate(group.samples):
            sample.optional |= not weight and not sample.rollout.turns  # a stored one would only dilute the others
            tokens = np.zeros(len(sample.rollout.tokens))
            for number, turn in enumerate(sample.rollout.turns):
                tokens[turn.start : turn.end] = by_place.get((member, number), 0.0)
            found.append((tokens[sample.rollout.loss_mask] + weight * episodes[member]).astype(np.float32))
        return found

    def _turn_advantages(self, group: Group) -> dict[Place, float]:
        """Return the mean over depths of each turn that has one."""
        depths: dict[Place, list[tuple[int, float]]] = defaultdict(list)
        returns = {
            (member, number): value
            for member, sample in enumerate(group.samples)
            for number, value in enumerate(discounted_returns(sample.rollout.turns, self.settings.discount))
        }
        for (depth, *_), places in self._alike(group.samples).items():
            values = np.array([returns[place] for place in places])
            distances = mean_advantages(values)
            if self.settings.normalize == "std":
                distances = distances / (values.std() + EPS)
            for place, advantage in zip(places, distances, strict=True):
                if advantage:
                    depths[place].append(((depth + 1) ** self.settings.power, float(advantage)))
        return {place: sum(w * a for w, a in items) / sum(w for w, _ in items) for place, items in depths.items()}

    def _alike(self, samples: Sequence[Sample]) -> dict[tuple, list[Place]]:
        """Return the turns of each depth and states, where there are two or more."""
        found: dict[tuple, list[Place]] = defaultdict(list)
        for member, sample in enumerate(samples):
            rollout = sample.rollout
            states = [turn.state for turn in rollout.turns]
            for number in range(len(states)):
                for depth in range(min(self.settings.history, number) + 1):
                    if number > depth and not states[number - depth]:
                        break
                    key = (depth, rollout.uid, *states[number - depth : number + 1])
                    found[key].append((member, number))
        return {key: places for key, places in found.items() if len(places) > 1}


def discounted_returns(turns: Sequence[Turn], discount: float) -> list[float]:
    """Return for each turn the sum of its reward and the discounted rewards of those that follow."""
    returns, following = [], 0.0
    for turn in reversed(turns):
        following = turn.reward + discount * following
        returns.append(following)
    return returns[::-1]
