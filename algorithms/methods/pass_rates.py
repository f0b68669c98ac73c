"""Pass rates of queries from training's own responses, by which several methods choose queries and sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Services, StepBatch
from algorithms.rollout.types import Context


def mixed_share(outcomes: Mapping[str, np.ndarray]) -> float:
    """Return the share of queries whose responses were neither all correct nor all incorrect; 0 without queries."""
    mixed = [bool(correct.any()) and not correct.all() for correct in outcomes.values()]
    return float(np.mean(mixed)) if mixed else 0.0


def check_sizes(usual: int, least: int, most: int, section: str) -> None:
    """Check that the usual group size is one of those that queries may get.

    Raises:
        ConfigError: it is not.
    """
    if not least <= usual <= most:
        raise ConfigError(
            f"{section}.min_size: training.group_size={usual} is not between {least} and {section}.max_size={most}; "
            f"fix: {section}.min_size=2 {section}.max_size={max(128, usual)}"
        )


def largest_group(batch: StepBatch) -> float:
    """Return the size of a step's largest plain group."""
    plain = (group for group in batch.rolled_out if group.prompt.context == Context.PLAIN)
    return float(max((len(group.fresh) for group in plain), default=0))


class PassRates:
    """A moving average of each query's pass rate; NaN where it was never sampled.

    Args:
        uids: the queries.
        memory: share of the old average that a new group leaves; 0: the newest group alone counts.
    """

    def __init__(self, uids: Sequence[str], memory: float = 0.0) -> None:
        self.index: Mapping[str, int] = {uid: number for number, uid in enumerate(uids)}
        self.memory, self.values = memory, np.full(len(self.index), np.nan)

    def of(self, uids: Sequence[str]) -> np.ndarray:
        """Return the rates of some queries, float [n]."""
        return self.values[[self.index[uid] for uid in uids]]

    def observe(self, outcomes: Mapping[str, np.ndarray]) -> None:
        """Update the rates with responses, bool [n] of each query."""
        for uid, correct in outcomes.items():
            old, new = self.values[self.index[uid]], float(correct.mean())
            self.values[self.index[uid]] = new if np.isnan(old) else self.memory * old + (1 - self.memory) * new

    def restore(self, values: "np.ndarray | None") -> None:
        """Restore `values`; without those of other data."""
        if values is not None and len(values) == len(self.values):
            self.values = np.array(values, float)

    def read(self, services: Services, column: str, setting: str) -> None:
        """Take the rates from a column of the data (`Query.info`).

        Raises:
            ConfigError: a query's is not a number from 0 to 1, or is not there.
        """
        for uid, number in self.index.items():
            self.values[number] = _rate(services.query(uid).info.get(column), uid, column, setting)


def _rate(value: Any, uid: str, column: str, setting: str) -> float:
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = float("nan")
    if not 0 <= rate <= 1:
        raise ConfigError(
            f"{setting}: {column} of query {uid} is {value!r}, and not a number from 0 to 1; fix: name the data's "
            f"column of pass rates in environment.columns.{column}"
        )
    return rate
