"""Knapsack RL: give a step's responses to the queries where one more has the largest value."""

import heapq
import math
from dataclasses import replace
from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Mechanism, Prompt, Services, Settings, State, StepBatch, setting
from algorithms.methods.pass_rates import PassRates, check_sizes, largest_group, mixed_share

CONFIDENCE = 0.9  # probability that a group of the size that a query needs is mixed


class KnapsackSettings(Settings):
    """Choose group sizes by each query's last pass rate; their sum stays that of equal groups."""

    enabled: bool = setting(True, "Whether to choose group sizes.")
    min_size: int = setting(2, "Minimum responses per query.", ge=1)
    max_size: int = setting(128, "Maximum responses per query.", ge=2)
    fallback: bool = setting(
        True,
        "Whether responses that queries of mixed outcome are not expected to need go to queries that were never "
        "solved.",
    )


class Knapsack(Mechanism):
    """Maximizes `Σ (1 - p^N - (1 - p)^N) · p (1 - p)²` over the sizes N, under their sum and `min_size`, `max_size`.

    The value of a group is the probability that it is mixed, times what it teaches then. It is concave in N, so that
    giving the next response to the query where it adds most is the optimum that the paper's dynamic program finds.
    p is the pass rate of the query's last group. A query without one gets `training.group_size`.

    Source: arXiv 2509.25849 (abstract and formula), and code of the allocation, fallback and defaults included. Ours:
    where no query of mixed outcome can take what is left, it goes to all others alike.
    """

    section = "knapsack"
    settings_class = KnapsackSettings
    by_query = ("rates",)
    tags = {"knapsack/largest": 0.0, "knapsack/mixed": 0.0}
    conflicts = {"gdro": "both decide how many responses each of a step's queries gets"}
    settings: KnapsackSettings

    def __init__(self, settings: KnapsackSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.rates = PassRates(services.uids)

    @classmethod
    def check(cls, settings: KnapsackSettings, config: Any) -> None:
        """Raise ConfigError for a least size that the step's responses do not suffice for."""
        size = config.training_settings.group_size
        if settings.enabled:
            check_sizes(size, settings.min_size, settings.max_size, cls.section)

    def shape_prompts(self, prompts: list[Prompt], step: int) -> list[Prompt]:
        """Give each query its size."""
        sizes = self.sizes(self.rates.of([prompt.uid for prompt in prompts]))
        return [replace(prompt, size=size) for prompt, size in zip(prompts, sizes, strict=True)]

    def sizes(self, rates: np.ndarray) -> list[int]:
        """Return the sizes for queries of these pass rates, float [n]; NaN is unknown."""
        chosen, usual = self.settings, self.services.config.training_settings.group_size
        unknown = np.isnan(rates)
        mixed, unsolved = (rates > 0) & (rates < 1), rates == 0
        sizes = np.where(unknown, usual, chosen.min_size)
        left = usual * len(rates) - int(sizes.sum())
        if chosen.fallback or not mixed.any():
            spare = left - sum(needed(rate, chosen.max_size) for rate in rates[mixed])
            others = unsolved if unsolved.any() else ~unknown & ~mixed
            left -= spread(sizes, others, spare, chosen.max_size)
        left -= _greedy(sizes, np.flatnonzero(mixed), rates, left, chosen.max_size)
        left -= spread(sizes, ~unknown & ~mixed, left, chosen.max_size)
        spread(sizes, np.ones(len(sizes), bool), left, max(chosen.max_size, usual * len(sizes)))
        return [int(size) for size in sizes]

    def update_history(self, batch: StepBatch) -> None:
        """Note the pass rates of the step's groups."""
        outcomes = batch.outcomes()
        self.rates.observe(outcomes)
        self.metrics["knapsack/largest"] = largest_group(batch)
        self.metrics["knapsack/mixed"] = mixed_share(outcomes)

    def state(self) -> State:
        """Return the pass rates."""
        return {"rates": self.rates.values}, {}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data."""
        self.rates.restore(arrays.get("rates"))


def gain(rate: float, size: int) -> float:
    """Return what response number `size + 1` adds to the value of a query's group."""
    return (rate**size * (1 - rate) + (1 - rate) ** size * rate) * rate * (1 - rate) ** 2


def needed(rate: float, most: int) -> int:
    """Count the responses after which a group of this pass rate is mixed with probability 0.9, roughly."""
    return int(min(most, math.log(1 - CONFIDENCE) / math.log(max(rate, 1 - rate))))


def spread(sizes: np.ndarray, where: np.ndarray, count: int, most: int) -> int:
    """Add up to `count` responses to the sizes of some queries, as equally as `most` allows; return how many."""
    given, places = 0, [int(place) for place in np.flatnonzero(where) if sizes[place] < most]
    while places and given < count:
        for place in places[: count - given]:
            sizes[place] += 1
            given += 1
        places = [place for place in places if sizes[place] < most]
    return given


def _greedy(sizes: np.ndarray, places: np.ndarray, rates: np.ndarray, count: int, most: int) -> int:
    """Add up to `count` responses, each where it gains most; return how many."""
    heap = [(-gain(rates[place], sizes[place]), int(place)) for place in places if sizes[place] < most]
    heapq.heapify(heap)
    given = 0
    while heap and given < count:
        _, place = heapq.heappop(heap)
        sizes[place] += 1
        given += 1
        if sizes[place] < most:
            heapq.heappush(heap, (-gain(rates[place], sizes[place]), place))
    return given
