"""ADCL: an order from easy to hard, in which the next queries are measured again and sorted again."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Prompt, Services, Settings, State, StepBatch, setting
from algorithms.grpo.query_sampler import QuerySampler
from algorithms.methods.pass_rates import PassRates

PROBE = "probe"


class AdclSettings(Settings):
    """Order queries from easy to hard, by difficulties that are estimated again as the policy changes."""

    interval: int = setting(
        8, "Steps between estimates; each estimate covers the queries of that many steps. Ours.", ge=1
    )
    responses: int = setting(4, "Responses per query for an estimate of its pass rate. Ours.", ge=1)


class AdclSampler(QuerySampler):
    """Takes the queries in an order; every `interval` steps those of the next `interval` steps are measured and sorted.

    Measured responses are not trained on. A step takes the next `queries_per_step` places of the order, which is gone
    through again and again.

    Source: arXiv 2505.08364 (abstract: "periodically re-estimating difficulty within upcoming data batches"). The
    size of those batches and the number of responses were not found.
    """

    section = "adcl"
    settings_class = AdclSettings
    by_query = ("order", "rates")
    tags = {"adcl/measured": 0.0, "adcl/pass_rate": 0.0}
    settings: AdclSettings

    def __init__(self, settings: AdclSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.uids = list(services.uids)
        training = services.config.training_settings
        self.per_step, self.lag = training.queries_per_step, training.max_off_policy_steps
        self.rates = PassRates(self.uids)
        self.order = np.random.default_rng([services.seed, 0]).permutation(len(self.uids))
        self.first = 0  # place of step 0: a run may start from another one's position

    @classmethod
    def check(cls, settings: AdclSettings, config: Any) -> None:
        """Raise ConfigError where further rounds would take the next queries before they are measured."""
        if rounds := config.training_settings.max_resample_rounds:
            raise ConfigError(
                f"training.max_resample_rounds: {rounds} would break the order of adcl; fix: "
                "training.max_resample_rounds=0"
            )

    def choose(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Take the step's places of the order."""
        self.first = self.drawn - step * self.per_step
        places = np.arange(self.drawn, self.drawn + count) % len(self.uids)
        return [self.uids[query] for query in self.order[places]]

    def upcoming(self, step: int) -> np.ndarray:
        """Return the places to measure in a step, after those of all steps in progress with it."""
        if step % self.settings.interval:
            return np.zeros(0, int)
        first = self.first + (step + 1 + self.lag) * self.per_step
        count = min(self.settings.interval * self.per_step, len(self.uids))
        return (first + np.arange(count)) % len(self.uids)

    def prompts(self, queries: Sequence[str], step: int) -> list[Prompt]:
        """Return prompts that measure the next queries."""
        chosen = self.order[self.upcoming(step)]
        return [Prompt(self.uids[query], PROBE, size=self.settings.responses) for query in chosen]

    def compose(self, batch: StepBatch) -> None:
        """Leave the measuring groups out of training."""
        batch.leave_out(PROBE)

    def update_history(self, batch: StepBatch) -> None:
        """Sort the next queries by what was measured."""
        measured = {
            group.prompt.uid: np.array([sample.rollout.correct for sample in group.fresh])
            for group in batch.rolled_out
            if group.prompt.context == PROBE
        }
        self.rates.observe(measured)
        self._sort(self.upcoming(batch.step))
        self.metrics["adcl/measured"] = float(len(measured))
        self.metrics["adcl/pass_rate"] = float(np.mean([each.mean() for each in measured.values()] or [0.0]))

    def _sort(self, places: np.ndarray) -> None:
        """Put what stands at these places in order of falling pass rate, pass by pass; unknown ones count as 0.5."""
        for part in np.split(places, np.flatnonzero(np.diff(places) < 0) + 1):
            queries = self.order[part]
            rates = np.nan_to_num(self.rates.values[queries], nan=0.5)
            self.order[part] = queries[np.argsort(-rates, kind="stable")]

    def state(self) -> State:
        """Return the order, its pass rates, and where in it the run began."""
        return {"order": self.order, "rates": self.rates.values}, {"first": self.first}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Restore them; without those of other data."""
        if len(arrays.get("order", ())) == len(self.uids):
            self.order, self.first = np.array(arrays["order"], np.int64), state.get("first", 0)
            self.rates.restore(arrays["rates"])
