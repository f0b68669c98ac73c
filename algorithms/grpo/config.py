"""GRPOConfig: the fluent sections of GRPO, and their translation for RLlib."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.util.debug import log_once

from algorithms.config.base import BaseConfig
from algorithms.config.consistency import check_parts, check_rules, check_second_tries
from algorithms.config.errors import ConfigError, shown
from algorithms.config.machine import WITHOUT_ADAPTER, RLModuleSettings
from algorithms.config.placement import check_placement
from algorithms.config.rllib_arguments import check_arguments, check_model_config
from algorithms.config.schema import Settings
from algorithms.config.sections import EnvironmentSettings, TrainingSettings
from algorithms.grpo.mechanism import Mechanism
from algorithms.grpo.registry import (
    advantage_estimator,
    all_plugins,
    check_plugins,
    enabled,
    named_mechanisms,
    own_methods,
    query_sampler,
    settings_of,
)
from algorithms.losses.base import load_objective
from algorithms.models.names import resolve_model
from algorithms.preflight.context_window import check_temperatures

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.core.learner import Learner
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

__all__ = ["ConfigError", "GRPOConfig"]

_SEEDS = 2**32  # of `run.seed`, as numpy and vLLM take them


class GRPOConfig(BaseConfig):
    """Configuration of GRPO; `docs/reference/settings.md` lists every setting.

    A fluent method takes the settings of its section, and the arguments of RLlib's method of that name.

    Example:
        `GRPOConfig().env_runners(max_response_tokens=48).training(lr=1e-4, group_size=8).build_algo()`
    """

    MECHANISMS: ClassVar[tuple[type[Mechanism], ...]] = ()

    def __init__(self, algo_class: "type[Algorithm] | None" = None) -> None:
        super().__init__(algo_class=algo_class)
        # A dead runner comes back at once, and only our own weight push talks to runners: RLlib's merging
        # of their states waits ten seconds for one that hangs.
        super().fault_tolerance(delay_between_env_runner_restarts_s=0.0)
        super().env_runners(merge_env_runner_states=False, broadcast_env_runner_states=False)
        self._dont_auto_sync_env_runner_states = True
        # Else RLlib makes the environment just to ask whether it is an Atari game.
        super().environment(is_atari=False)

    def environment(self, env: Any = NotProvided, *, env_config: Any = NotProvided, **settings: Any) -> Self:
        """Set the environment: section `environment`, or RLlib's `env` and `env_config`."""
        if env_config is not NotProvided:
            if not isinstance(env_config, Mapping):
                raise ConfigError(f"environment.env_config: {shown(env_config)} is not a mapping")
            given = EnvironmentSettings.from_constructor_arguments(env_config)
            if "options" in given:
                given["options"] = self.environment_settings.options | given["options"]
            settings = given | settings
        return self._set("environment", {"env": env, **settings})

    def rl_module(self, *, model_config: Any = NotProvided, **settings: Any) -> Self:
        """Set the model that is trained: section `rl_module`, or RLlib's arguments."""
        if isinstance(model_config, Mapping):
            ours = {key: value for key, value in model_config.items() if key in RLModuleSettings.model_fields}
            model_config = {key: value for key, value in model_config.items() if key not in ours} or NotProvided
            settings = ours | settings
        return self._set("rl_module", {"model_config": model_config, **settings})

    def env_runners(self, **settings: Any) -> Self:
        """Set the actors that run episodes: section `env_runners`, or RLlib's arguments."""
        return self._set("env_runners", settings)

    def learners(self, **settings: Any) -> Self:
        """Set the processes that train: section `learners`, or RLlib's arguments."""
        return self._set("learners", settings)

    def training(self, **settings: Any) -> Self:
        """Set the optimization: section `training`, or RLlib's arguments."""
        return self._set("training", settings)

    def reward(self, **settings: Any) -> Self:
        """Set the length bonus: section `reward`."""
        return self._set("reward", settings)

    def history(self, **settings: Any) -> Self:
        """Set what the history keeps: section `history`."""
        return self._set("history", settings)

    def evaluation(self, **settings: Any) -> Self:
        """Set evaluation: section `evaluation`, or RLlib's arguments."""
        return self._set("evaluation", settings)

    def check_settings(self) -> None:
        """Check rules between settings, without starting or importing anything.

        Raises:
            ConfigError: settings that contradict each other.
        """
        super().check_settings()
        if not isinstance(self.seed, int | None) or not 0 <= (self.seed or 0) < _SEEDS:
            raise ConfigError(
                f"debugging(seed={shown(self.seed)}): is no whole number from 0 to {_SEEDS - 1}; fix: seed=0, say"
            )
        if self.TRAINS and not self.in_evaluation:  # RLlib's copy for runners of its own, which there are none of
            check_arguments(self, type(self)(), {name: kind.model_fields for name, kind in self.sections.items()})
            if type(self).get_default_rl_module_spec is GRPOConfig.get_default_rl_module_spec:
                check_model_config(self)
        check_placement(self)
        check_temperatures(self)
        check_rules(self)
        training, evaluation = self.training_settings, self.evaluation_settings
        if self.TRAINS:  # an evaluation loads nothing that a run's file names
            check_plugins(self, (*self.MECHANISMS, *named_mechanisms(training, self.MECHANISMS)))
        responses = training.queries_per_step * training.group_size
        if responses % training.minibatches:
            most = min(training.minibatches, responses)
            fix = max(divisor for divisor in range(1, most + 1) if responses % divisor == 0)
            raise ConfigError(
                f"training.minibatches: {training.minibatches} does not divide the {responses} responses of "
                f"a step (training.queries_per_step × group_size); fix: training.minibatches={fix}"
            )
        if max(evaluation.k) > evaluation.samples:
            raise ConfigError(
                f"evaluation.k: {max(evaluation.k)} is more than evaluation.samples, {evaluation.samples}; "
                f"fix: evaluation.samples={max(evaluation.k)}, or evaluation.k="
                f"[{','.join(str(k) for k in evaluation.k if k <= evaluation.samples) or evaluation.samples}]"
            )
        check_second_tries(evaluation, self.environment_settings.max_turns)
        if self.TRAINS:  # an evaluation may take another environment
            check_parts(evaluation, self.environment_settings)
        trained_on = self.environment_settings.data
        asked = evaluation.environment_arguments().get("data")
        if asked and trained_on and os.path.abspath(asked) == os.path.abspath(trained_on):
            raise ConfigError(f"evaluation.data: {shown(asked)} is environment.data too; fix: name held-out problems")

    @classmethod
    def sections_elsewhere(cls) -> frozenset[str]:
        """Return the sections of methods, and of a supervised start, that this configuration has not by itself."""
        return frozenset(("sft", *(kind.section for kind in all_plugins()))) - cls.class_sections().keys()

    @classmethod
    def class_sections(cls) -> dict[str, type[Settings]]:
        """Return the sections that every such configuration has."""
        return {**cls.SECTIONS, **{kind.section: kind.settings_class for kind in cls.MECHANISMS}}

    def plugin_sections(self, training: TrainingSettings) -> dict[str, type[Settings]]:
        """Return the sections of what section `training` names.

        Raises:
            ConfigError: something that it names cannot be loaded, or two methods have sections of one name.
        """
        if not self.TRAINS:  # nor does an evaluation load what a run's file names
            return {}
        methods = (query_sampler(training), advantage_estimator(training), load_objective(training.objective))
        mechanisms = named_mechanisms(training, self.MECHANISMS)
        for kind in (*mechanisms, query_sampler(training)):
            if not kind.section and kind.state is not Mechanism.state:
                raise ConfigError(f"training: {kind.__name__} has a state and no section; fix: section = 'a name'")
        named = [kind for kind in (*mechanisms, *methods) if kind.section]
        sections = [kind.section for kind in (*self.MECHANISMS, *named)]
        if twice := [section for section in dict.fromkeys(sections) if sections.count(section) > 1]:
            fix = "name each method once, or give one another section"
            raise ConfigError(f"training.mechanisms: two methods have a section {twice[0]}; fix: {fix}")
        return {kind.section: kind.settings_class for kind in named}

    def extra_prompts(self) -> int:
        """Count the prompts that mechanisms add to a step at most."""
        queries = self.training_settings.queries_per_step
        return sum(kind.extra_prompts(settings_of(kind, self), queries) for kind in self._enabled())

    def quoted_tokens(self) -> int:
        """Count the tokens of an attempt that prompts of a mechanism quote at most."""
        limit = self.env_runners_settings.context_response * self.environment_settings.max_turns
        return max((kind.quoted_tokens(settings_of(kind, self), limit) for kind in self._enabled()), default=0)

    def enabled_mechanisms(self) -> list[str]:
        """Name the mechanisms whose switch is on."""
        return [kind.section or kind.__name__ for kind in self._enabled()]

    def own_methods(self) -> list[str]:
        """Describe what section `training` names as `module:Class`."""
        return own_methods(self.training_settings, self._enabled()) if self.TRAINS else []

    @property
    def needs_reference(self) -> bool:
        """Whether learners keep the initial model: for a KL penalty, or for a mechanism."""
        return super().needs_reference or any(kind.uses_reference for kind in self._enabled())

    @property
    def teacher_setting(self) -> str:
        """Name the setting of the teacher that learners load."""
        return next((f"{kind.section}.teacher" for kind in self._enabled() if kind.uses_teacher), "")

    @property
    def teacher_settings(self) -> RLModuleSettings | None:
        """Return which frozen teacher learners load: that of the mechanism that uses one."""
        section = self.teacher_setting.partition(".")[0]
        if not section:
            return None
        own: Any = getattr(self, f"{section}_settings")
        changes = {"model": own.teacher, "revision": own.teacher_revision, **WITHOUT_ADAPTER}
        return self.rl_module_settings.changed("rl_module", changes)

    def _enabled(self) -> list[type[Mechanism]]:
        named = named_mechanisms(self.training_settings, self.MECHANISMS) if self.TRAINS else []
        return enabled((*self.MECHANISMS, *named), self)

    def validate(self) -> None:
        """Check all settings, ours and RLlib's.

        Raises:
            ConfigError: settings of ours that contradict each other.
            ValueError: settings of RLlib's that do.
        """
        self.check_settings()
        if self.algo_class is None:
            self.algo_class = self.default_algo_class()
        if self.env_runner_cls is None:
            from algorithms.rollout.env_runner import LLMEnvRunner

            super().env_runners(env_runner_cls=LLMEnvRunner)
        # RLlib greets every algorithm on its new API stack with a warning. There is no other stack here.
        log_once(f"{self.algo_class.__name__}_on_new_api_stack")
        super().validate()

    # What runs. Imported late: naming a configuration loads neither torch models nor engines.

    @classmethod
    def default_algo_class(cls) -> "type[Algorithm]":
        """Return the algorithm that is built when none was given."""
        from algorithms.grpo.algorithm import GRPO

        return GRPO

    def build_algo(self, env: Any = None, use_copy: bool = True) -> "Algorithm":
        """Build the algorithm, see RLlib's `AlgorithmConfig.build_algo`.

        The model, the problems and what is there to run on are checked before, as by the command. Ray is started if it
        is not running, with as many CPU slots as the actors ask for.

        Raises:
            ConfigError: one line that names the setting, the model, the environment or the data.
            RayDidNotStart: Ray did not start.
        """
        from algorithms.preflight.check import validate_start, warn_of_cluster
        from algorithms.preflight.ray_session import start_ray

        if env is not None:
            self.environment(env)
        validate_start(self)
        if start_ray(self):
            warn_of_cluster(self)
        return self.build_checked(use_copy)

    def build_checked(self, use_copy: bool = True) -> "Algorithm":
        """Do RLlib's part of `build_algo`, after the settings were checked and Ray was started."""
        if self.algo_class is None:
            self.algo_class = self.default_algo_class()
        self.measured.is_checked = True
        return super().build_algo(use_copy=use_copy)

    def build_learner_group(
        self, *, env: Any = None, spaces: Any = None, rl_module_spec: Any = None, placement_group: Any = None
    ) -> "LearnerGroup":
        """Build the learners as RLlib does, in a group that calls no Ray but its own."""
        from algorithms.learner.rllib_group import BoundLearnerGroup

        spec = rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return BoundLearnerGroup(config=self.copy(), module_spec=spec, placement_group=placement_group)

    def build_learner_connector(self, *arguments: Any, **more: Any) -> Any:
        """Build none: learners get the driver's rows, and RLlib's pipeline of six takes a quarter of a second."""

    def get_default_learner_class(self) -> "type[Learner]":
        """Return the learner, for RLlib."""
        from algorithms.learner.learner import GRPOLearner

        return GRPOLearner

    def get_default_rl_module_spec(self) -> "RLModuleSpec":
        """Return the causal language model, for RLlib."""
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec

        from algorithms.learner.model import CausalLMModule

        return RLModuleSpec(module_class=CausalLMModule)

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        settings, weights = self.rl_module_settings, self.learners_settings.weights
        resolved = {**settings.model_dump(), "model": resolve_model(settings.model), "weights": weights}
        return super()._model_config_auto_includes | resolved
