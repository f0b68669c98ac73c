"""Settings that RLlib also has, and their names there."""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.search.sample import Domain

from algorithms.config.errors import ConfigError, shown
from algorithms.config.registered import environment_id
from algorithms.config.schema import Settings

RLLIB_NAMES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("environment", "id"): "env",
        ("env_runners", "num_env_runners"): "num_env_runners",
        ("env_runners", "num_cpus_per_env_runner"): "num_cpus_per_env_runner",
        ("env_runners", "num_gpus_per_env_runner"): "num_gpus_per_env_runner",
        ("env_runners", "timeout_s"): "sample_timeout_s",
        ("learners", "num_learners"): "num_learners",
        ("learners", "num_cpus_per_learner"): "num_cpus_per_learner",
        ("learners", "num_gpus_per_learner"): "num_gpus_per_learner",
        ("training", "lr"): "lr",
        ("training", "passes"): "num_epochs",
        ("training", "grad_clip"): "grad_clip",
        ("evaluation", "interval"): "evaluation_interval",
    }
)
OUR_NAMES: Mapping[str, tuple[str, str]] = MappingProxyType({rllib: ours for ours, rllib in RLLIB_NAMES.items()})

# Arguments of RLlib's that stand for several settings of section `evaluation`.
OF_EVALUATION = ("evaluation_duration", "evaluation_config")
DEFAULT_DURATION = 10  # of RLlib's `evaluation_duration`: nobody gave one
_GREEDY: Mapping[str, Any] = MappingProxyType({"temperature": 0.0, "samples": 1, "k": [1]})

# RLlib switches these off with None, we with 0.
_NONE_IS_ZERO = frozenset({"evaluation_interval", "grad_clip"})


def our_name(section: str, key: str) -> str:
    """Return our name for what may be RLlib's: `evaluation_interval` is `interval` in the section evaluation."""
    owner, name = OUR_NAMES.get(key, (section, key))
    return name if owner == section else key


def to_rllib(rllib_name: str, value: Any) -> Any:
    """Return our value as RLlib's attribute holds it."""
    return None if rllib_name in _NONE_IS_ZERO and value == 0 else value


def from_rllib(key: str, rllib_name: str | None, value: Any) -> Any:
    """Return RLlib's value as our setting holds it.

    Args:
        key: the name that the user wrote; None means 0 only under RLlib's.
        rllib_name: RLlib's name for the setting; None if it has none.
        value: of the setting.

    Raises:
        ConfigError: a schedule of RLlib's, which is a list.
    """
    if rllib_name == "lr" and isinstance(value, list | tuple):
        raise ConfigError(f"training.lr: {shown(value)} is not a number; fix: training.lr_schedule and warmup_steps")
    if rllib_name == "env":
        return environment_id(value)
    return 0 if key in _NONE_IS_ZERO and value is None else value


def as_evaluation(argument: str, value: Any) -> dict[str, Any]:
    """Return the settings of section `evaluation` that a value of one of `OF_EVALUATION` stands for.

    Raises:
        ConfigError: it stands for none.
    """
    if argument == "evaluation_duration":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"evaluation_duration: {shown(value)} is no number of episodes; fix: evaluation.limit")
        return {"limit": value, "samples": 1, "k": [1]}
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"evaluation_config: {shown(value)} is not a mapping; fix: section evaluation")
    given = dict(value or {})
    explores = given.pop("explore", True)
    if explores not in (None, True, False):
        raise ConfigError(f"evaluation_config: explore={shown(explores)} is not true or false")
    settings = {} if explores in (None, True) else dict(_GREEDY)
    held_out = dict(given.pop("env_config", None) or {})
    settings |= {key: held_out.pop(key) for key in ("data", "columns") if key in held_out}
    if unknown := [*given, *(f"env_config.{key}" for key in held_out)]:
        fix = "section evaluation; known: explore, env_config.data, env_config.columns"
        raise ConfigError(f"evaluation_config: {unknown[0]} has no effect here; fix: {fix}")
    return settings


def check_unset(argument: str, meant: Mapping[str, Any], settings: Settings) -> None:
    """Check that one of `OF_EVALUATION`, which takes one response per problem, replaces no other number of them.

    Args:
        argument: its name.
        meant: what it stands for, see `as_evaluation`.
        settings: section `evaluation` so far.

    Raises:
        ConfigError: it would.
    """
    defaults = type(settings)()
    own = {name: getattr(settings, name) for name in ("samples", "k")}
    check_agrees(argument, meant, {name: value for name, value in own.items() if value != getattr(defaults, name)})


def check_agrees(argument: str, meant: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that settings of section `evaluation` take one response per problem, as one of `OF_EVALUATION` does.

    Args:
        argument: its name.
        meant: what it stands for, see `as_evaluation`.
        given: the settings, by name.

    Raises:
        ConfigError: they take another number.
    """
    for name in ("samples", "k"):
        if name in meant and name in given and given[name] != meant[name]:
            raise ConfigError(
                f"{argument}: takes one response per problem, and evaluation.{name} is {shown(given[name])}; "
                "fix: leave one of them out"
            )


def rllib_arguments(section: str) -> frozenset[str]:
    """Return the arguments of RLlib's own fluent method of that name; empty when RLlib has no such method."""
    method = getattr(AlgorithmConfig, section, None)
    return frozenset(inspect.signature(method).parameters) - {"self"} if callable(method) else frozenset()


def is_search_space(value: object) -> bool:
    """Return whether a value is one that Ray Tune replaces, trial by trial."""
    return isinstance(value, Domain) or (isinstance(value, Mapping) and set(value) == {"grid_search"})


def holds_search_space(value: object) -> bool:
    """Return whether a value is one of these, or a mapping with one in it."""
    return is_search_space(value) or (isinstance(value, Mapping) and any(map(holds_search_space, value.values())))
