"""VAS, variance-aware sampling: a share of each step drawn by outcome variance and diversity, the rest uniformly."""

from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Services, Settings, State, StepBatch, setting
from algorithms.grpo.query_sampler import QuerySampler
from algorithms.methods.pass_rates import PassRates, mixed_share
from algorithms.rollout.types import Context

_LONGEST = 3  # of the n-grams
OUTCOME, DIVERSITY = 0.8, 0.2  # α and β: weights of the variance and of the diversity


class VasSettings(Settings):
    """Draw part of a step's queries by how much their responses vary."""

    share: float = setting(
        0.5, "Share of a step's queries that are drawn by weight (λ); the rest are drawn uniformly.", ge=0, le=1
    )
    interval: int = setting(35, "Steps between updates of the weights.", ge=1)


class VasSampler(QuerySampler):
    """Weighs a query by `0.8 · p(1 - p) + 0.2 · d`, and draws a share of the step in proportion.

    p and d are of the query's last group; the weights take them over every `interval` steps. d is the mean of distinct
    1-, 2- and 3-grams of tokens over all of them.

    Source: MMR1, arXiv 2509.21268, section 3 and its settings (λ 0.5, α 0.8, β 0.2, 35 steps). There all queries are
    sampled 32 times at each refresh. Ours: training's own groups are the estimate, a query without one counts as
    p = 0.5 and d = 1, none comes twice in a step, and distinct-n stands for the paper's choice of diversities.
    """

    section = "vas"
    settings_class = VasSettings
    by_query = ("rates", "varied", "weights")
    tags = {"vas/weight": 0.0, "vas/mixed": 0.0}
    settings: VasSettings

    def __init__(self, settings: VasSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.uids = list(services.uids)
        self.rates = PassRates(self.uids)
        self.varied = np.ones(len(self.uids))
        self.weights = self.scores()

    def scores(self) -> np.ndarray:
        """Return the variance promotion score of each query as it is known now, float [N]."""
        p = np.nan_to_num(self.rates.values, nan=0.5)
        return OUTCOME * p * (1 - p) + DIVERSITY * self.varied

    def choose(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Draw a share by weight and the rest uniformly, none twice in a step if there are enough."""
        rng = self.services.rng(self.section, step, occasion)
        free = np.ones(len(self.uids), bool)
        free[[self.rates.index[uid] for uid in self.taken.get(step, ())]] = False
        chosen: list[int] = []
        for part, weights in (
            (int(self.settings.share * count), self.weights),
            (count, np.ones(len(self.uids))),
        ):
            while len(chosen) < part:
                if not free.any():
                    free[:] = True
                odds = np.where(free, weights, 0.0)
                odds = odds if odds.any() else free.astype(float)
                query = int(rng.choice(len(odds), p=odds / odds.sum()))
                free[query] = False
                chosen.append(query)
        return [self.uids[query] for query in chosen]

    def update_history(self, batch: StepBatch) -> None:
        """Measure the step's groups; every `interval` steps update the weights."""
        outcomes = batch.outcomes()
        self.rates.observe(outcomes)
        for group in batch.rolled_out:
            if group.prompt.context == Context.PLAIN and group.fresh:
                tokens = [sample.rollout.response_tokens for sample in group.fresh]
                self.varied[self.rates.index[group.prompt.uid]] = distinct(tokens)
        if (batch.step + 1) % self.settings.interval == 0:
            self.weights = self.scores()
        self.metrics["vas/weight"] = float(self.weights.mean())
        self.metrics["vas/mixed"] = mixed_share(outcomes)

    def state(self) -> State:
        """Return the measures of all queries, and the weights for drawing."""
        return {"rates": self.rates.values, "varied": self.varied, "weights": self.weights}, {}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data."""
        if len(arrays.get("rates", ())) == len(self.uids):
            self.rates.restore(arrays["rates"])
            self.varied, self.weights = np.array(arrays["varied"], float), np.array(arrays["weights"], float)


def distinct(responses: "list[np.ndarray]") -> float:
    """Return the mean over n = 1, 2, 3 of the share of distinct n-grams among those of all responses, int [L] each."""
    shares = []
    for n in range(1, _LONGEST + 1):
        grams = [tuple(tokens[at : at + n].tolist()) for tokens in responses for at in range(len(tokens) - n + 1)]
        if grams:
            shares.append(len(set(grams)) / len(grams))
    return float(np.mean(shares)) if shares else 0.0
