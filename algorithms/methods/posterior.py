"""VADE-like query sampling: a Beta posterior of each query's pass rate, Thompson draws, undecided queries first."""

from typing import Any, Literal

import numpy as np

from algorithms.grpo.mechanism import Services, Settings, State, StepBatch, setting
from algorithms.grpo.query_sampler import QuerySampler
from algorithms.rollout.types import Context

MEMORY = 0.8  # share of its counts that a query keeps when it is sampled again
FORGETTING = 0.02  # share of all counts that is lost per step, as the policy changes


class PosteriorSettings(Settings):
    """Sample queries whose groups are likely to have mixed outcomes, instead of shuffling each epoch."""

    score: Literal["variance", "target"] = setting(
        "variance", "Whether to take queries with the largest p(1-p), or those with p nearest to `target`."
    )
    target: float = setting(
        0.5, "The pass rate to aim at. A value below 0.5 leaves more hard queries to R³.", gt=0, lt=1
    )


class PosteriorSampler(QuerySampler):
    """Beta(a, b) of each query's pass rate; a step draws p for all queries and takes those with the largest score.

    A score of p(1 - p) avoids the hard queries that R³ exists for: combined with it, aim at a low `target`.
    """

    section = "posterior"
    settings_class = PosteriorSettings
    by_query = ("a", "b")
    tags = {"posterior/mean": 0.5, "posterior/mixed": 0.0}
    settings: PosteriorSettings

    def __init__(self, settings: PosteriorSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.uids = list(services.uids)
        self.index = {uid: number for number, uid in enumerate(self.uids)}
        self.a, self.b = np.ones(len(self.uids)), np.ones(len(self.uids))

    def choose(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Take the queries with the largest scores of p ~ Beta(a, b), none twice in a step if there are enough."""
        p = self.services.rng(self.section, step, occasion).beta(self.a, self.b)
        score = p * (1 - p) if self.settings.score == "variance" else -((p - self.settings.target) ** 2)
        score[[self.index[uid] for uid in self.taken.get(step, ())]] = -np.inf
        order = np.argsort(-score, kind="stable")
        chosen = np.resize(order, count)  # from the start again where there are fewer queries
        return [self.uids[number] for number in chosen]

    def update_history(self, batch: StepBatch) -> None:
        """Count correct and incorrect plain answers, those of dropped groups included, never a replayed one."""
        kept, mixed = 1.0 - FORGETTING, []
        self.a, self.b = 1 + kept * (self.a - 1), 1 + kept * (self.b - 1)
        for group in batch.rolled_out:
            if group.prompt.context == Context.PLAIN:
                query = self.index[group.prompt.uid]
                correct = np.array([sample.rollout.correct for sample in group.fresh])
                self.a[query] = 1 + MEMORY * (self.a[query] - 1) + correct.sum()
                self.b[query] = 1 + MEMORY * (self.b[query] - 1) + (~correct).sum()
                mixed.append(bool(0 < correct.sum() < len(correct)))
        self.metrics["posterior/mean"] = float((self.a / (self.a + self.b)).mean())
        self.metrics["posterior/mixed"] = float(np.mean(mixed)) if mixed else 0.0

    def state(self) -> State:
        """Return the counts of all queries."""
        return {"a": self.a, "b": self.b}, {}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data."""
        if len(arrays.get("a", ())) == len(self.uids):
            self.a, self.b = np.array(arrays["a"], float), np.array(arrays["b"], float)
