"""End a run before its last step: each entry of `run.stop` compares one number of a step with a limit.

An entry is a metric's tag, the name of a file in this folder, or `module:Class` of the user's own.
"""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from algorithms.config.errors import ConfigError, did_you_mean, shown
from algorithms.config.plugins import Plugin, find_plugins, load_plugin
from algorithms.config.sections import RunSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.train.tags import known_tags

SETTING = "run.stop"
_COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


class StopCondition(Plugin):
    """A number of each step, and the limit that ends the run.

    Args:
        key: of the entry.
        limit: of the entry: a number that has to be reached, or a text such as "<0.05".

    Raises:
        ConfigError: the limit is neither.
    """

    def __init__(self, key: str, limit: object) -> None:
        self.key = key
        found = re.fullmatch(r"([<>]=?)?\s*(\S+)", str(limit).strip()) if isinstance(limit, int | float | str) else None
        try:
            if found is None or isinstance(limit, bool) or not math.isfinite(number := float(found[2])):
                raise ValueError
        except ValueError:
            raise ConfigError(
                f'{SETTING}.{key}: {shown(limit)} is no limit; fix: a number to reach, such as 0.8, or "<0.05"'
            ) from None
        self.sign, self.limit = found[1] or ">=", number

    def measure(self, row: Mapping[str, Any]) -> float | None:
        """Return the number that is compared; None where this step does not have it.

        Args:
            row: of the step, as in metrics.jsonl. The rows of all steps come once and in order; a resumed run passes
                the stored ones first.
        """
        raise NotImplementedError

    def observe(self, row: Mapping[str, Any]) -> str | None:
        """Return the entry and its number if the run ends with this step, else None."""
        value = self.measure(row)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        reached = _COMPARISONS[self.sign](value, self.limit)
        return f"{SETTING}.{self.key}: {value:.6g} {self.sign} {self.limit:g}" if reached else None


class Metric(StopCondition):
    """A metric of the step's row."""

    def measure(self, row: Mapping[str, Any]) -> float | None:
        """Return the metric's value."""
        return row.get(self.key)


def build_conditions(stop: Mapping[str, object], config: GRPOConfig) -> list[StopCondition]:
    """Build the conditions of `run.stop`.

    Raises:
        ConfigError: an entry names nothing, or a metric that this run does not measure, or its limit is none.
    """
    return [_kind(key, config)(key, limit) for key, limit in stop.items()]


class RunEnd:
    """Decides where a run ends: at `run.steps`, `run.max_generated_tokens` or a condition of `run.stop`."""

    def __init__(self, run: RunSettings, config: GRPOConfig) -> None:
        self._run, self._config = run, config
        self.restart([])

    def restart(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the rows of a run that resumes, in place of those before: a condition that the last satisfies holds."""
        self._conditions = build_conditions(self._run.stop, self._config)
        self._reached: str | None = None
        for row in rows:
            self.observe(row)

    def observe(self, row: Mapping[str, Any]) -> None:
        """Take the row of the next step, as metrics.jsonl has it: NaN is None there."""
        row = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        self._reached = next(filter(None, [condition.observe(row) for condition in self._conditions]), None)

    def reached(self, steps: int, generated_tokens: int) -> str | None:
        """Return the setting that ends the run after so much, and the number that did; None where it goes on."""
        if steps >= self._run.steps:
            return f"run.steps: {steps}"
        if 0 < self._run.max_generated_tokens <= generated_tokens:
            return f"run.max_generated_tokens: {generated_tokens}"
        return self._reached


def _kind(key: str, config: GRPOConfig) -> type[StopCondition]:
    named = find_plugins(__package__, StopCondition)
    if key in named or ":" in key:
        return load_plugin(SETTING, key, StopCondition, named)
    known = known_tags(config)
    evaluation = config.evaluation_settings
    if (of_k := re.fullmatch(r"eval/pass@([1-9]\d*)", key)) and key not in known:
        wanted = sorted({*evaluation.k, int(of_k[1])})
        raise ConfigError(f"{SETTING}.{key}: is not measured; fix: evaluation.k={wanted}".replace(", ", ","))
    if key not in known and not key.startswith("reward/function/"):
        raise ConfigError(f"{SETTING}.{key}: no such metric or condition; {did_you_mean(key, [*named, *known])}")
    if key.startswith("eval/") and not evaluation.interval:
        raise ConfigError(
            f"{SETTING}.{key}: is measured only with evaluations between steps; fix: evaluation.interval=10, say"
        )
    return Metric
