"""ExGRPO's sampler: a share of each step goes to queries that were partly solved, medium pass rates first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Services, Settings, State, StepBatch, setting
from algorithms.grpo.query_sampler import EpochSampler
from algorithms.methods.pass_rates import PassRates

START = 0.35  # share of correct responses in a step from which queries are drawn
SIGMA = 1.0  # of the weights around half of a group, in correct responses


class ExGrpoSettings(Settings):
    """Draw part of a step's queries from those that the policy sometimes solves."""

    share: float = setting(
        0.5, "Share of a step's queries that are drawn this way (ρ); the rest are the epoch's.", ge=0, le=1
    )


class ExGrpoSampler(EpochSampler):
    """Draws a number k of correct responses by `N(k; G/2, 1)`, then a query whose last group had that many.

    Queries that were always or never correct are not drawn. None comes twice in a step's share. With
    `replay.groups=all replay.outcome=correct replay.draw=lowest_entropy replay.shaping=0.1` groups of queries with a
    stored success get the one that the policy is surest of.

    Source: arXiv 2510.02245 and the authors' code. There only the drawn queries get a stored success, and sample one
    response less for it; ours is that every group does whose query has one, and samples `training.group_size`.
    """

    section = "exgrpo"
    settings_class = ExGrpoSettings
    by_query = ("rates",)
    tags = {"exgrpo/candidates": 0.0, "exgrpo/started": 0.0}
    settings: ExGrpoSettings

    def __init__(self, settings: ExGrpoSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.group_size = services.config.training_settings.group_size
        self.rates = PassRates(self.uids)
        self.started = False

    def choose(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Return the drawn share, then the epoch's next queries; `drawn` counts only the latter."""
        rng = self.services.rng(self.section, step, occasion)
        wanted = int(self.settings.share * count) if self.started else 0
        chosen = self.experience(wanted, rng, self.taken.get(step, ()))
        rest = super().choose(count - len(chosen), step, occasion)
        self.drawn -= len(chosen)
        return chosen + rest

    def experience(self, count: int, rng: np.random.Generator, without: Sequence[str] = ()) -> list[str]:
        """Draw up to `count` queries that were solved in part."""
        solved = np.nan_to_num(np.rint(self.rates.values * self.group_size), nan=0.0).astype(int)
        partly = (self.rates.values > 0) & (self.rates.values < 1)
        partly[[self.rates.index[uid] for uid in without]] = False
        buckets = {int(k): list(np.flatnonzero(partly & (solved == k))) for k in np.unique(solved[partly])}
        chosen: list[str] = []
        while buckets and len(chosen) < count:
            numbers = np.array(list(buckets))
            logits = -((numbers - self.group_size / 2) ** 2) / (2 * SIGMA**2)
            odds = np.exp(logits - logits.max())
            bucket = int(rng.choice(numbers, p=odds / odds.sum()))
            chosen.append(self.uids[int(buckets[bucket].pop(int(rng.integers(len(buckets[bucket])))))])
            if not buckets[bucket]:
                del buckets[bucket]
        return chosen

    def update_history(self, batch: StepBatch) -> None:
        """Note the pass rates of the step's groups, and whether the policy is good enough to begin."""
        outcomes = batch.outcomes()
        self.rates.observe(outcomes)
        correct = np.concatenate(list(outcomes.values())) if outcomes else np.zeros(1)
        self.started = self.started or bool(correct.mean() > START)
        rates = self.rates.values
        self.metrics["exgrpo/candidates"] = float(((rates > 0) & (rates < 1)).sum())
        self.metrics["exgrpo/started"] = float(self.started)

    def state(self) -> State:
        """Return the pass rates, and whether it has begun."""
        return {"rates": self.rates.values}, {"started": self.started}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data."""
        self.rates.restore(arrays.get("rates"))
        self.started = bool(state.get("started", False))
