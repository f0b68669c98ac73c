"""GDRO: an adversary over bins of difficulty, which gives bins with more failures more responses, or more weight."""

from dataclasses import replace
from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Group, Mechanism, Prompt, Services, Settings, State, StepBatch, setting
from algorithms.methods.knapsack import spread
from algorithms.methods.pass_rates import PassRates, check_sizes, largest_group

# The authors' numbers.
EDGES = (0.4, 0.75)  # pass rates that divide the bins
HYSTERESIS = 0.03  # how far a pass rate moves past an edge before its query changes bins
MEMORY = 0.85  # share of the old value in a query's moving pass rate
BETA = 0.12  # share of a bin's score that each step replaces
ETA = 0.65  # how strongly scores act
MAX_WEIGHT = 15.0  # of an advantage


class GdroSettings(Settings):
    """Distribute responses, or weigh advantages, by the difficulty bin of a query."""

    enabled: bool = setting(True, "Whether to use the adversary's weights of the bins.")
    rollouts: bool = setting(
        True, "Whether to distribute the step's responses over bins by these weights (Rollout-GDRO)."
    )
    min_size: int = setting(2, "Minimum responses per query.", ge=1)
    max_size: int = setting(24, "Maximum responses per query.", ge=2)
    weights: bool = setting(False, "Whether to multiply advantages by these weights (Prompt-GDRO).")


class Gdro(Mechanism):
    """`S(b) <- (1 - β) S(b) + β · (1 - pass rate of bin b)`, `ω(b) = exp(η S(b))`.

    A query of bin b gets a size in proportion to ω(b), and the sizes of a step sum up to that of equal groups; or its
    advantages times `min(ω(b), 15)`. Bins are those of the query's moving pass rate.

    Source: arXiv 2601.19280 (sections 2 to 4) and the authors' code, which score a bin by its surrogate loss. At ratio
    1 that is 0 for every query, as advantages of a group sum up to 0; ours is 1 - pass rate. Ours as well: sizes in
    proportion, in place of a bandit over sizes (EXP3P) with a price μ on responses. Every bin is observed at every
    step here, and the budget is kept exactly.
    """

    section = "gdro"
    settings_class = GdroSettings
    by_query = ("rates", "bins")
    tags = {"gdro/hardest": 0.0, "gdro/easiest": 0.0, "gdro/largest": 0.0}
    settings: GdroSettings

    def __init__(self, settings: GdroSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.rates = PassRates(services.uids, MEMORY)
        self.bins = np.full(len(self.rates.values), -1)  # unknown
        self.scores = np.zeros(len(EDGES) + 1)

    @classmethod
    def check(cls, settings: GdroSettings, config: Any) -> None:
        """Raise ConfigError for sizes that the usual one is not among."""
        size = config.training_settings.group_size
        if settings.enabled and settings.rollouts:
            check_sizes(size, settings.min_size, settings.max_size, cls.section)

    def shape_prompts(self, prompts: list[Prompt], step: int) -> list[Prompt]:
        """Give each query its size."""
        if not self.settings.rollouts:
            return prompts
        sizes = self.sizes(self.factors([prompt.uid for prompt in prompts]))
        return [replace(prompt, size=size) for prompt, size in zip(prompts, sizes, strict=True)]

    def factors(self, uids: list[str]) -> np.ndarray:
        """Return ω of the queries' bins, float [n]; of one that was never sampled, the mean over all bins."""
        bins = self.bins[[self.rates.index[uid] for uid in uids]]
        omega = np.exp(ETA * self.scores)
        return np.where(bins < 0, omega.mean(), omega[bins])

    def sizes(self, factors: np.ndarray) -> list[int]:
        """Distribute the step's responses in proportion, within the bounds; the rest goes to the largest remainders."""
        budget = self.services.config.training_settings.group_size * len(factors)
        shares = budget * factors / factors.sum()
        sizes = np.clip(np.floor(shares).astype(int), self.settings.min_size, self.settings.max_size)
        order = np.argsort(-(shares - sizes), kind="stable")
        ordered = sizes[order]
        spread(ordered, np.ones(len(ordered), bool), budget - int(ordered.sum()), self.settings.max_size)
        while ordered.sum() > budget:  # the least sizes were more than the shares of the easiest
            ordered[int(np.argmax(ordered))] -= 1
        sizes[order] = ordered
        return [int(size) for size in sizes]

    def advantages(self, group: Group, advantages: np.ndarray) -> "np.ndarray | list[np.ndarray]":
        """Multiply them by the bin's factor."""
        if not self.settings.weights:
            return advantages
        factor = min(float(self.factors([group.prompt.uid])[0]), MAX_WEIGHT)
        return [advantage * factor for advantage in advantages] if isinstance(advantages, list) else advantages * factor

    def update_history(self, batch: StepBatch) -> None:
        """Score the bins by their failures, and move queries between bins."""
        outcomes = batch.outcomes()
        failed: dict[int, list[float]] = {}
        self.rates.observe(outcomes)
        for uid, correct in outcomes.items():
            query = self.rates.index[uid]
            self.bins[query] = self.bin(float(self.rates.values[query]), int(self.bins[query]))
            failed.setdefault(int(self.bins[query]), []).append(1.0 - float(correct.mean()))
        for number, shares in failed.items():
            self.scores[number] += BETA * (float(np.mean(shares)) - self.scores[number])
        self.metrics["gdro/hardest"], self.metrics["gdro/easiest"] = float(self.scores[0]), float(self.scores[-1])
        self.metrics["gdro/largest"] = largest_group(batch)

    def bin(self, rate: float, old: int) -> int:
        """Return the bin of a pass rate; near an edge the old one stays."""
        new = int(np.searchsorted(EDGES, rate, side="right"))
        if old < 0 or new == old:
            return new
        edge = EDGES[old] if new > old else EDGES[old - 1]
        return new if abs(rate - edge) > HYSTERESIS else old

    def state(self) -> State:
        """Return rates and bins of the queries, and the bins' scores."""
        return {"rates": self.rates.values, "bins": self.bins, "scores": self.scores}, {}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data."""
        if len(arrays.get("rates", ())) == len(self.bins):
            self.rates.restore(arrays["rates"])
            self.bins, self.scores = np.array(arrays["bins"], int), np.array(arrays["scores"], float)
