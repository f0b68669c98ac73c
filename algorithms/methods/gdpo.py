"""GDPO: normalize each of several rewards in its group before they are added up."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.advantages import group_advantages
from algorithms.grpo.mechanism import Group, Mechanism, Services, Settings, StepBatch, setting
from algorithms.grpo.rewards import added_rewards
from algorithms.grpo.types import baseline_groups
from algorithms.rollout.types import TRUNCATED
from r3env.envs.function_loading import labels

EPS = 1e-4


class GDPOSettings(Settings):
    """Normalize each reward function's rewards by themselves."""

    enabled: bool = setting(True, "Whether to normalize them by themselves; false: their sum.")


class GDPO(Mechanism):
    """`A_i = S_i / (std(S) + ε)`, `S_i = Σ_k w_k (r_ik - mean_k) / (std_k + ε)`; ε is 1e-4.

    `r_ik` is what reward function k returned for response i (`Rollout.rewards`), before its weight `w_k` of
    `environment.options.weights`; its mean and deviation are those of the group, over the responses on which the
    function said something. Where it said nothing, it adds 0. `std(S)` is over all responses of the step, whose mean is
    0. A correct response whose last turn was truncated gets 0 from each function, as the environment pays that turn
    nothing; what functions gave earlier turns is lost as well. A group in which a response is stored, is paid by a
    mechanism, or has no rewards by name has one reward: that of the whole response.

    Summed first, rewards of different scales drown each other, and different combinations get the same advantage. Only
    what functions return counts: a bonus or a penalty of section `reward` belongs into a function of its own.

    Source: GDPO, arXiv 2601.05242; TRL's `multi_objective_aggregation="normalize_then_sum"`. The deviations are the
    population's, as in all of this library; TRL divides by n - 1.
    """

    section = "gdpo"
    settings_class = GDPOSettings
    tags = {"gdpo/std": 0.0}
    settings: GDPOSettings

    def __init__(self, settings: GDPOSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.weights = weights_of(services.config.environment_settings.options)
        self.found: dict[int, float] = {}  # advantages by the id of the sample

    @classmethod
    def check(cls, settings: GDPOSettings, config: Any) -> None:
        """Raise ConfigError for rewards that would not act."""
        if settings.enabled and (added := added_rewards(config)):
            name, value, fix = added[0]
            raise ConfigError(f"{name}: {value:g} has no effect with gdpo, which reads functions alone; fix: {fix}")

    def is_informative(self, group: Group) -> bool:
        """Return whether a function's rewards differ, be all correct or all incorrect."""
        return bool(np.any(self.sums(group)))

    def before_advantages(self, batch: StepBatch) -> None:
        """Compute the advantages of all groups: the last deviation is the step's."""
        groups = baseline_groups(batch.groups)
        sums = np.concatenate([np.zeros(0), *(self.sums(group) for group in groups)])
        std = float(np.sqrt(np.mean(sums**2))) if len(sums) else 0.0
        self.metrics["gdpo/std"] = std
        samples = [sample for group in groups for sample in group.samples]
        self.found = {id(sample): own / (std + EPS) for sample, own in zip(samples, sums, strict=True)}

    def advantages(self, group: Group, advantages: np.ndarray) -> np.ndarray:
        """Return the group's, float64 [G]."""
        return np.array([self.found[id(sample)] for sample in group.samples])

    def sums(self, group: Group) -> np.ndarray:
        """Return S of each member, float64 [G]; exact zeros where no function's rewards differ."""
        rewards = rewards_of(group)
        scale = np.broadcast_to(group.std_scale, len(rewards))
        names = dict.fromkeys(name for each in rewards for name in each)
        total = np.zeros(len(rewards))
        for name in names:
            members = [number for number, each in enumerate(rewards) if name in each]
            told = np.array([rewards[number][name] for number in members])
            own = group_advantages(told, std_scale=scale[members], std_floor=group.std_floor, eps=EPS)
            total[members] += self.weights.get(name, 1.0) * own
        return total


def rewards_of(group: Group) -> list[Mapping[str, float]]:
    """Return each member's rewards by the name of their function; a single one where a member has none by name."""
    samples = group.samples
    if any(each.replayed or each.shaped_reward is not None or not each.rollout.rewards for each in samples):
        return [{"": each.training_reward} for each in samples]
    rollouts = [each.rollout for each in samples]
    return [dict.fromkeys(one.rewards, 0.0) if one.verdict == TRUNCATED else one.rewards for one in rollouts]


def weights_of(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the weights of reward functions by their names in `Rollout.rewards`, of a mixture's parts too.

    A part has the mixture's further options, and its own before them.
    """
    names: str | Sequence[str] = options.get("reward") or ()
    names = [names] if isinstance(names, str) else names
    found = dict(zip(labels(names), options.get("weights") or (), strict=False))
    common = {name: value for name, value in options.items() if name != "environments"}
    for part, within in (options.get("environments") or {}).items():
        own = weights_of({**common, **(within.get("options") or {})})
        found |= {f"{part}/{name}": weight for name, weight in own.items()}
    return found
