"""GRESO: an epoch that skips queries whose last groups taught nothing, more often the longer this lasts."""

from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Services, Settings, State, StepBatch, setting
from algorithms.grpo.query_sampler import EpochSampler

# Of the authors' code: the least probability that a query is sampled, where p begins, its bounds, and how far it moves.
_LEAST, START, BOUNDS, STEP_SIZE = 0.01, 0.5, (0.05, 0.95), 0.01


class GresoSettings(Settings):
    """Skip queries whose last groups were all correct or all incorrect, with a growing probability."""

    target: float = setting(
        0.25,
        "Target share of homogeneous groups, toward which p moves: a third all correct, the rest all incorrect.",
        ge=0,
        le=1,
    )


class GresoSampler(EpochSampler):
    """Goes through the epoch, and samples a query with probability `max(p^z, 0.01)`, else skips it.

    z is how many groups in a row, up to the newest, were all correct (then p is `p_easy`), or all incorrect (`p_hard`).
    Once an epoch is over each step moves both: down by 0.01 where the share of such groups is at least its
    target, else up.

    Source: arXiv 2506.02177, and the authors' code, whose defaults these are. There a group counts as all incorrect up
    to a pass rate of 0.11. The authors sample further queries until the step is full: `training.max_resample_rounds`.
    """

    section = "greso"
    settings_class = GresoSettings
    by_query = ("runs",)
    tags = {"greso/p_easy": 0.0, "greso/p_hard": 0.0, "greso/skipped": 0.0}
    settings: GresoSettings

    def __init__(self, settings: GresoSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.index = {uid: number for number, uid in enumerate(self.uids)}
        self.runs = np.zeros(len(self.uids), np.int64)  # z; below 0 of groups all incorrect
        self.p = np.full(2, START)  # easy, hard

    def choose(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Return the next `count` queries that are not skipped."""
        rng, keeps = self.services.rng(self.section, step, occasion), self.keeps()
        return self.choose_where(count, lambda uid: bool(rng.random() < keeps[self.index[uid]]))

    def keeps(self) -> np.ndarray:
        """Return the probability that each query is sampled when its turn comes, float [N]."""
        p = np.where(self.runs > 0, *self.p)
        return np.maximum(p ** np.abs(self.runs), _LEAST)

    def update_history(self, batch: StepBatch) -> None:
        """Count runs of homogeneous groups, and steer both p."""
        outcomes = batch.outcomes()
        kinds = np.array([(correct.all(), not correct.any()) for correct in outcomes.values()], bool).reshape(-1, 2)
        for uid, (easy, hard) in zip(outcomes, kinds, strict=True):
            run = self.runs[self.index[uid]]
            self.runs[self.index[uid]] = max(run, 0) + 1 if easy else min(run, 0) - 1 if hard else 0
        if self.drawn > len(self.uids) and outcomes:
            shares = kinds.mean(0)
            targets = self.settings.target * np.array([1 / 3, 2 / 3])
            moved = self.p + np.where(shares >= targets, -1, 1) * STEP_SIZE
            self.p = np.clip(moved, *BOUNDS)
        self.metrics["greso/p_easy"], self.metrics["greso/p_hard"] = map(float, self.p)
        self.metrics["greso/skipped"] = float(1 - self.keeps().mean())

    def state(self) -> State:
        """Return the runs of all queries, and both p."""
        return {"runs": self.runs, "p": self.p}, {}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data."""
        if len(arrays.get("runs", ())) == len(self.uids):
            self.runs, self.p = np.array(arrays["runs"], np.int64), np.array(arrays["p"], float)
