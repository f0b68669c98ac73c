"""A fixed window of difficulty: queries with a pass rate outside are left out of the epoch."""

from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Services, Settings, State, StepBatch, setting
from algorithms.grpo.query_sampler import EpochSampler
from algorithms.methods.pass_rates import PassRates


class WindowSettings(Settings):
    """Leave out queries that are too easy or too hard."""

    low: float = setting(0.1, "Minimum pass rate to sample.", ge=0, le=1)
    high: float = setting(0.9, "Maximum pass rate to sample.", ge=0, le=1)
    column: str | None = setting(
        None,
        "Column of the data (`environment.columns`) with pass rates that were measured before training; null: use "
        "the pass rate of a query's first group in training.",
    )


class WindowSampler(EpochSampler):
    """Goes through the epoch, and skips queries whose pass rate is known and not in [`low`, `high`].

    A rate is measured once and then kept, so that the window is one of fixed difficulty: what training makes easier
    stays in it. Where no query is left, those nearest to the window are sampled in turn.

    Source: the filter that most recipes apply to their data before training (ours in training); no paper of its own.
    """

    section = "window"
    settings_class = WindowSettings
    by_query = ("rates",)
    tags = {"window/share": 1.0}
    settings: WindowSettings

    def __init__(self, settings: WindowSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.rates = PassRates(self.uids)
        if settings.column is not None:
            self.rates.read(services, settings.column, "window.column")

    @classmethod
    def check(cls, settings: WindowSettings, config: Any) -> None:
        """Raise ConfigError for a window that is empty."""
        if settings.low > settings.high:
            raise ConfigError(
                f"window.low: {settings.low:g} is above window.high, {settings.high:g}; fix: lower one of them"
            )

    def choose(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Return the next `count` queries of the window."""
        distance = self.distances()
        allowed = {self.uids[query] for query in np.flatnonzero(distance <= distance.min())}
        return self.choose_where(count, allowed.__contains__)

    def distances(self) -> np.ndarray:
        """Return how far each query's rate is outside the window, float [N]; 0 within it and where it is unknown."""
        rates = self.rates.values
        outside = np.maximum(np.maximum(self.settings.low - rates, rates - self.settings.high), 0.0)
        return np.nan_to_num(outside, nan=0.0)

    def update_history(self, batch: StepBatch) -> None:
        """Measure queries that were not measured before."""
        unknown = {uid: correct for uid, correct in batch.outcomes().items() if np.isnan(self.rates.of([uid]))[0]}
        self.rates.observe(unknown)
        self.metrics["window/share"] = float((self.distances() == 0).mean())

    def state(self) -> State:
        """Return the measured rates."""
        return {"rates": self.rates.values}, {}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data."""
        self.rates.restore(arrays.get("rates"))
