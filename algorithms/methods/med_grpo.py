"""MedGRPO: map the rewards of each part of a mixture so that its median is worth the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Group, Mechanism, Sample, Services, Settings, State, StepBatch, setting


class MedGRPOSettings(Settings):
    """Normalize rewards by the part of a mixture that a query is of."""

    enabled: bool = setting(True, "Whether to normalize.")
    responses: int = setting(
        256, "Responses of a part that its median and quartiles are measured on, the first ones (ours).", ge=4
    )
    min_spread: float = setting(
        0.1, "Least distance of the quartiles: where most rewards are equal, it stands in (ours).", gt=0
    )


class MedGRPO(Mechanism):
    """Pays `1 / (1 + 9^(-(R - m) / s))`, m the median of the part's rewards and s the distance of their quartiles.

    The median pays 1/2 in each part, half a quartile distance above it 3/4. The part is what stands before the slash of
    a query's uid (`r3env/Mixture-v0`); queries without one are a part of their own. Both numbers are those of the
    part's first responses, this step's included, and stay once there are enough.

    Source: arXiv 2512.06581, its abstract (the median of each data set is mapped to a common value) and notes (by a
    logistic function, to 1/2; statistics of a model before training). Ours: the slope, the quartiles as its scale,
    and that statistics are those of the first steps. The judge of captions is left out.
    """

    section = "med_grpo"
    settings_class = MedGRPOSettings
    tags = {"med_grpo/parts": 0.0, "med_grpo/lowest_median": 0.0, "med_grpo/highest_median": 0.0}
    conflicts = {"ranking": "it would pay what ranking has paid by its own scale"}
    settings: MedGRPOSettings

    def __init__(self, settings: MedGRPOSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.kept: dict[str, np.ndarray] = {}  # the first rewards of each part
        self.known: dict[str, np.ndarray] = {}  # with those of the running step

    def before_rewards(self, batch: StepBatch) -> None:
        """Add the step's rewards to those of parts that are not measured yet."""
        self.known = dict(self.kept)
        for group in batch.stored:
            earlier = self.known.get(part_of(group), np.zeros(0))
            rewards = [sample.reward for sample in group.fresh]
            self.known[part_of(group)] = np.append(earlier, rewards)[: self.settings.responses]
        medians = [float(np.median(values)) for values in self.known.values() if len(values)]
        if medians:
            self.metrics["med_grpo/parts"] = float(len(medians))
            self.metrics["med_grpo/lowest_median"] = min(medians)
            self.metrics["med_grpo/highest_median"] = max(medians)

    def rewards(self, group: Group) -> None:
        """Pay the group's rewards by the scale of their part."""
        self._pay(group, group.samples)

    def normalize(self, group: Group) -> None:
        """Pay those that have joined the group by the same scale."""
        joined = [sample for sample in group.samples if sample.replayed or sample.borrowed]
        self._pay(group, [sample for sample in joined if sample.shaped_reward is None])

    def _pay(self, group: Group, samples: Sequence[Sample]) -> None:
        values = self.known.get(part_of(group), np.zeros(0))
        if not len(values):
            return
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
        spread = max(high - low, self.settings.min_spread)
        for sample in samples:
            distance = (sample.reward - median) / spread
            sample.shaped_reward = float(0.5 + 0.5 * np.tanh(np.log(3.0) * distance))  # 1 / (1 + 9^-distance)

    def update_history(self, batch: StepBatch) -> None:
        """Keep the rewards."""
        self.kept = self.known

    def state(self) -> State:
        """Return the rewards that were kept."""
        arrays = {str(number): values for number, values in enumerate(self.kept.values())}
        return arrays, {"parts": list(self.kept)}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Put them back."""
        self.kept = {name: arrays[str(number)] for number, name in enumerate(state.get("parts", ()))}


def part_of(group: Group) -> str:
    """Return the part of the mixture that a group's query is of; empty where there is no mixture."""
    name, slash, _ = group.prompt.uid.partition("/")
    return name if slash else ""
