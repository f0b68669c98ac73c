"""End a run before its last step: each entry of `run.stop` compares one number of a step with a limit.

An entry is a metric's tag, the name of a file in this folder, or `module:Class` of the user's own.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from algorithms.config.errors import ConfigError, did_you_mean, shown
from algorithms.config.plugins import Plugin, find_plugins, load_plugin
from algorithms.config.sections import RunSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.registry import BUILT_IN, named_mechanisms, query_sampler
from algorithms.utils.errors import RunError
from algorithms.utils.files import plain

SETTING = "run.stop"
_COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
# Numbers of every step, a list beside docs/reference/metrics.md; methods have `tags` of their own. Some are there only
# where a setting or a device asks for them.
_TAGS = """
reward/mean reward/correct reward/training_mean
groups/count groups/solve_all groups/solve_none groups/zero_advantage
sampling/refills sampling/dropped_groups
response/mean_tokens response/max_tokens response/further_contexts response/truncated response/no_answer
grading/no_answer grading/ungraded grading/timeouts grading/errors grading/screened grading/unread grading/restarts
tools/calls tools/used tools/failed
policy/loss policy/entropy policy/kl policy/grad_norm policy/clip_fraction policy/is_bounded policy/logp_mismatch_mean
policy/logp_mismatch_max policy/lr policy/skipped_steps policy/trained_tokens
replay/clip_fraction replay/ratio_max replay/stored replay/damaged
rollout/prompts_expected rollout/prompts_completed rollout/failed_share rollout/environment_errors
rollout/changed_prefixes rollout/runner_restarts rollout/runner_recovery_s rollout/hung rollout/requeued rollout/stolen
rollout/stale rollout/policy_lag rollout/policy_lag_mean rollout/mixed_policies
throughput/response_tokens_per_s throughput/samples_per_s throughput/learner_tokens_per_s throughput/mfu
throughput/padding_share throughput/idle_share throughput/generated_tokens
time/step time/cpu time/generate time/grade time/statistics time/update time/transfer time/collect_rollouts
time/sleep_engines time/score_tokens time/shape_rewards time/compose_groups time/compute_advantages time/update_policy
time/update_history time/sync_weights
run/wall_s run/epoch
eval/mean_tokens eval/truncated eval/no_answer eval/reward eval/distinct eval/failed_share eval/problems eval/samples
""".split()


class StopCondition(Plugin):
    """A number of each step, and the limit that ends the run.

    Args:
        key: of the entry.
        limit: of the entry: a number that has to be reached, or a text such as "<0.05". A class that needs more than
            one number takes others in an `__init__` of its own, and passes the limit on.

    Raises:
        ConfigError: the limit is neither.
    """

    named_in = "run.stop={{{}: LIMIT}}"
    needed = ("measure",)

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
            row: of the step, as in metrics.jsonl: without evaluations where none was made, None for a number that is
                not finite. The rows of all steps come once and in order; a resumed run passes the stored ones first.
        """
        raise NotImplementedError

    def observe(self, row: Mapping[str, Any]) -> str | None:
        """Return the entry and its number if the run ends with this step, else None.

        Raises:
            RunError: `measure` fails, or returns anything but a number or None.
        """
        try:
            value = plain(self.measure(row))
            if not isinstance(value, int | float | None):
                raise TypeError(f"it returned {shown(value)}, which is no number")
        except Exception as error:  # of a class that somebody else wrote
            raise RunError(
                f"{SETTING}.{self.key}: measure failed on the row of step {row.get('step')} ({type(error).__name__}: "
                f"{error}); fix: correct it, or resume with {SETTING}={{}}"
            ) from error
        if value is None:
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
    return [_build(_kind(key, config), key, limit) for key, limit in stop.items()]


def _build(kind: type[StopCondition], key: str, limit: object) -> StopCondition:
    try:
        condition = kind(key, limit)
        if not condition.__dict__.keys() >= {"key", "sign", "limit"}:
            raise TypeError("it does not call super().__init__(key, limit)")
        return condition
    except ConfigError:
        raise
    except Exception as error:  # of a class that somebody else wrote
        raise ConfigError(
            f"{SETTING}.{key}: {kind.__name__} does not take {shown(limit)} ({type(error).__name__}: {error}); fix: "
            "another limit, or correct its __init__"
        ) from error


class RunEnd:
    """Decides where a run ends: at `run.steps`, `run.max_generated_tokens` or a condition of `run.stop`."""

    def __init__(self, run: RunSettings, config: GRPOConfig) -> None:
        self._run, self._config = run, config
        self.replay([])

    def replay(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the rows of a run that resumes, in place of those before: a condition that the last satisfies holds."""
        self._conditions = build_conditions(self._run.stop, self._config)
        self._reached: str | None = None
        for row in rows:
            self.observe(row)

    def observe(self, row: Mapping[str, Any]) -> None:
        """Take the row of the next step, as metrics.jsonl has it: NaN is None there."""
        row = plain(row)
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
    _check_tag(f"{SETTING}.{key}: ", key, config, named)
    if key.startswith("eval/") and not config.evaluation_settings.interval:
        raise ConfigError(
            f"{SETTING}.{key}: is measured only with evaluations between steps; fix: evaluation.interval=10, say"
        )
    return Metric


def check_best_metric(run: RunSettings, config: GRPOConfig) -> None:
    """Check that `run.best_metric` names a metric; one that needs evaluations need not be measured.

    Raises:
        ConfigError: it names none, or one that this run does not measure.
    """
    if run.best_metric not in (None, RunSettings.model_fields["best_metric"].default):
        _check_tag("run.best_metric: ", run.best_metric, config)


def _check_tag(named_by: str, key: str, config: GRPOConfig, conditions: Iterable[str] = ()) -> None:
    """Raise ConfigError if no metric has this tag; a message begins with what named it."""
    known = known_tags(config)
    if (of_k := re.fullmatch(r"eval/pass@([1-9]\d*)", key)) and key not in known:
        wanted = sorted({*config.evaluation_settings.k, int(of_k[1])})
        raise ConfigError(f"{named_by}is not measured; fix: evaluation.k={wanted}".replace(", ", ","))
    from algorithms.losses.base import PACKAGE, LossTerm  # imports torch

    of_terms = [f"loss/{name}" for name in find_plugins(PACKAGE, LossTerm)]
    of_the_users = key.startswith("reward/function/") or re.match("loss/[A-Z]", key)
    if key not in (*known, *of_terms) and not of_the_users:
        near = did_you_mean(key, [*conditions, *known, *of_terms])
        raise ConfigError(f"{named_by}no such metric{' or condition' if conditions else ''}; {near}")


def known_tags(config: GRPOConfig) -> list[str]:
    """Return the tags of the numbers that a run measures, those of its methods and evaluations included.

    Means of reward functions, `reward/function/NAME`, and terms of the loss, `loss/NAME`, are not among them: the
    environment names these, and the rows of a step those.
    """
    training, evaluation = config.training_settings, config.evaluation_settings
    kinds = (*BUILT_IN, *config.MECHANISMS, *named_mechanisms(training, config.MECHANISMS), query_sampler(training))
    of_methods = [tag for kind in kinds for tag in kind.tags]
    of_k = [f"eval/pass@{k}" for k in evaluation.k]
    reflected = ["eval/pass@1_after_reflection"] if evaluation.reflection else []
    return [*_TAGS, *of_methods, *of_k, *reflected]
