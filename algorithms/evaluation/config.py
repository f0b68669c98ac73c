"""The configuration of an evaluation, and what can be checked before an engine starts."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import ClassVar

from algorithms.config.base import BaseConfig
from algorithms.config.errors import ConfigError
from algorithms.config.loading import as_override
from algorithms.config.schema import Affects, Sections, settings_that_affect
from algorithms.config.sections import SECTIONS, BenchmarksSettings, RunSettings
from algorithms.models.names import validate_model
from algorithms.preflight.check import validate_sequences
from algorithms.preflight.environments import EnvironmentFacts, longest_first, user_prompts
from algorithms.preflight.resources import validate_resources
from r3env.core import VerifiableEnv


class BenchmarksConfig(BaseConfig):
    """A configuration that trains nothing: a training configuration's sections, and `benchmarks`."""

    SECTIONS: ClassVar[Sections] = MappingProxyType({**SECTIONS, "benchmarks": BenchmarksSettings})
    TRAINS: ClassVar[bool] = False

    benchmarks_settings: BenchmarksSettings


# The sections that the file of an evaluation may have.
KNOWN_SECTIONS: Sections = MappingProxyType({"run": RunSettings, **BenchmarksConfig.SECTIONS})


def without_learners() -> list[str]:
    """Return overrides by which no setting of learners, which a training configuration has, refuses an evaluation."""
    learners = settings_that_affect(KNOWN_SECTIONS, Affects.LEARNERS)
    return [as_override(name, default) for name, default in learners.items()]


def move_gpu_to_engine(config: BaseConfig) -> None:
    """Give the learner's GPU to the engine where both would be in the driver."""
    runners, learners = config.env_runners_settings, config.learners_settings
    gpus = runners.num_gpus_per_env_runner or (0 if runners.num_env_runners else learners.num_gpus_per_learner)
    config.apply({"env_runners": {"num_gpus_per_env_runner": gpus}, "learners": {"num_gpus_per_learner": 0}})


def check_limits(config: BenchmarksConfig, environment: VerifiableEnv) -> None:
    """Check that the answers can be scored at `benchmarks.limits`.

    Raises:
        ConfigError: a limit above the one that answers are sampled with, or answers of several turns.
    """
    limits, most = config.benchmarks_settings.limits, config.env_runners_settings.max_response_tokens
    if limits and max(limits) > most:
        raise ConfigError(
            f"benchmarks.limits: {max(limits)} is more than env_runners.max_response_tokens, {most}: no answer is "
            f"sampled up to that limit; fix: env_runners.max_response_tokens={max(limits)}"
        )
    if limits and environment.max_turns > 1:
        raise ConfigError(
            f"benchmarks.limits: a limit applies to one turn, and of answers of up to {environment.max_turns} turns "
            "only the total length is known; fix: benchmarks.limits=[]"
        )


def validate_engine(config: BenchmarksConfig, environment: VerifiableEnv, uids: Sequence[str]) -> None:
    """Check the engine's requirements: GPUs, packages, the model, room for prompts and answers.

    Raises:
        ConfigError: one line that names the setting, and the fix.
    """
    validate_resources(config)
    model = validate_model(config)
    if model is None:
        return
    facts = EnvironmentFacts(
        None,
        len(uids),
        prompts=longest_first(user_prompts(environment, uids)),
        guidance=environment.reflection_guidance,
        max_turns=environment.max_turns,
        has_own_end=environment.has_own_end,
        tools=environment.tools,
    )
    validate_sequences(config, model, facts)
