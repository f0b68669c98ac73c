"""AlgorithmConfig with sections: validated, immutable settings that agree with RLlib's flat attributes."""

import inspect
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.tune.search.sample import Domain

from algorithms.config.errors import ConfigError, did_you_mean, shown
from algorithms.config.machine import EnvRunnerSettings, LearnerSettings, RLModuleSettings
from algorithms.config.schema import Settings, unknown_key
from algorithms.config.sections import (
    SECTIONS,
    EnvironmentSettings,
    EvaluationSettings,
    RewardSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm


_logger = logging.getLogger(__name__)
_SUFFIX = "_settings"


class BaseConfig(AlgorithmConfig):
    """What every configuration of this library is made of; `BaseConfig` has the sections.

    A section is a fluent method and an immutable attribute `<section>_settings`. Where a setting is an
    attribute of RLlib's too (`training.lr` is `config.lr`), the two never differ, whichever is set.
    """

    SECTIONS: ClassVar[Mapping[str, type[Settings]]] = SECTIONS

    environment_settings: EnvironmentSettings
    rl_module_settings: RLModuleSettings
    env_runners_settings: EnvRunnerSettings
    learners_settings: LearnerSettings
    training_settings: TrainingSettings
    reward_settings: RewardSettings
    evaluation_settings: EvaluationSettings

    def __init__(self, algo_class: "type[Algorithm] | None" = None) -> None:
        super().__init__(algo_class=algo_class)
        self._search_space: dict[str, dict[str, Any]] = {}
        for section, model in self.SECTIONS.items():
            self._store(section, model())

    def apply(self, sections: Mapping[str, Any]) -> Self:
        """Set `{"section": {"key": value}}`, as a configuration file has it.

        Raises:
            ConfigError: an unknown section or key, or a wrong value.
        """
        for section, values in sections.items():
            if section not in self.SECTIONS:
                raise ConfigError(f"{section}: no such section; {did_you_mean(str(section), self.SECTIONS)}")
            if not isinstance(values, Mapping | None):
                raise ConfigError(f"{section}: {shown(values)} is not a mapping; fix: write {section}: {{key: value}}")
            self._set(section, values or {}, rllib=False)
        return self

    def to_sections(self) -> dict[str, dict[str, Any]]:
        """Every setting as plain data, such that `apply` restores it. What only RLlib knows is not in it."""
        return {section: self._settings_of(section).model_dump() for section in self.SECTIONS}

    def check_settings(self) -> None:
        """Check what involves more than one setting, without starting or importing anything.

        Raises:
            ConfigError: settings that contradict each other.
        """
        self.check_search_space()

    @classmethod
    def sections_elsewhere(cls) -> frozenset[str]:
        """Sections that other algorithms have: a file may be shared with them."""
        return frozenset()

    def check_search_space(self) -> None:
        """Refuse settings that Ray Tune has not chosen yet.

        Raises:
            ConfigError: a setting still holds a search space.
        """
        for section, searched in self._search_space.items():
            for key in searched:
                fix = "pass the configuration to tune.Tuner(param_space=...)"
                raise ConfigError(f"{section}.{key}: is still a search space; fix: {fix}")

    def to_dict(self) -> dict[str, Any]:
        """RLlib's flat dict, which Tune reads.

        A setting is in it once: under RLlib's name if it has one, in `env_config` if the environment gets it,
        else in the plain dict `<section>_settings`.
        """
        flat = super().to_dict()
        search_space = flat.pop("_search_space")
        for section in self.SECTIONS:
            values = flat.pop(f"{section}{_SUFFIX}").model_dump()
            searched = search_space.get(section, {})
            named = {RLLIB_NAMES[section, key]: searched[key] for key in searched if (section, key) in RLLIB_NAMES}
            rest = {key: value for key, value in (values | searched).items() if (section, key) not in RLLIB_NAMES}
            flat |= named
            if section == "environment":
                flat["env_config"] |= {key: value for key, value in rest.items() if key in searched}
            elif rest:
                flat[f"{section}{_SUFFIX}"] = rest
        return flat

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set what RLlib's flat dict holds; it may hold sections too, as `{"training": {...}}`."""
        sections, flat = {}, {}
        for key, value in config_dict.items():
            section = key.removesuffix(_SUFFIX)
            if section in self.SECTIONS and isinstance(value, Mapping | Settings):
                sections[section] = value.model_dump() if isinstance(value, Settings) else value
            else:
                flat[key] = value
        super().update_from_dict(flat)
        return self.apply(sections)

    def __setattr__(self, key: str, value: Any) -> None:
        section = key.removesuffix(_SUFFIX)
        if section != key and section in self.SECTIONS:
            if not isinstance(value, self.SECTIONS[section]):
                raise ConfigError(f"{key}: {shown(value)} is not of type {self.SECTIONS[section].__name__}")
            self._store(section, value)
        elif key in OUR_NAMES and f"{OUR_NAMES[key][0]}{_SUFFIX}" in self.__dict__:
            self._set(OUR_NAMES[key][0], {key: value})
        elif key == "env_config" and f"environment{_SUFFIX}" in self.__dict__:
            blank = EnvironmentSettings(id=self.__dict__[f"environment{_SUFFIX}"].id)
            given = EnvironmentSettings.from_constructor_arguments(value)
            self._store("environment", blank.changed("environment", given))
        else:
            super().__setattr__(key, value)

    def __setitem__(self, key: str, value: Any) -> None:
        # RLlib's own goes past __setattr__, and with it past the frozen state and our settings.
        setattr(self, key, value)

    def _settings_of(self, section: str) -> Settings:
        settings: Settings = getattr(self, f"{section}{_SUFFIX}")
        return settings

    def _set(self, section: str, given: Mapping[str, Any], *, rllib: bool = True) -> Self:
        """Set settings of a section by our names or RLlib's; with `rllib`, RLlib's further arguments too."""
        model = self.SECTIONS[section]
        ours: dict[str, Any] = {}
        searched: dict[str, Any] = {}
        passed_on: dict[str, Any] = {}
        for key, value in given.items():
            name = our_name(section, key)
            if value is NotProvided:
                continue
            if name in model.model_fields:
                target = searched if is_search_space(value) else ours
                target[name] = from_rllib(RLLIB_NAMES.get((section, name)), value)
            elif rllib and key in rllib_arguments(section):
                passed_on[key] = value
            else:
                raise unknown_key(section, str(key), self.SECTIONS)
        self._store(section, self._settings_of(section).changed(section, ours))
        kept = {key: value for key, value in self._search_space.get(section, {}).items() if key not in ours}
        self._search_space = {**self._search_space, section: kept | searched}
        for key in passed_on:
            if (section, key) in WITHOUT_EFFECT:
                _logger.warning("%s.%s has no effect: %s", section, key, WITHOUT_EFFECT[section, key])
        if passed_on:
            getattr(super(), section)(**passed_on)
        return self

    def _store(self, section: str, settings: Settings) -> None:
        before = self.__dict__.get(f"{section}{_SUFFIX}")
        super().__setattr__(f"{section}{_SUFFIX}", settings)
        for (owner, name), rllib_name in RLLIB_NAMES.items():
            if owner == section:
                super().__setattr__(rllib_name, to_rllib(rllib_name, getattr(settings, name)))
        if isinstance(settings, EnvironmentSettings):
            super().__setattr__("env_config", settings.constructor_arguments())
        if isinstance(settings, EnvRunnerSettings) and (
            before is None or before.num_env_runners != settings.num_env_runners
        ):
            # A local runner next to remote ones would be one more engine, in the driver.
            super().__setattr__("create_local_env_runner", settings.num_env_runners == 0)


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
        ("training", "grad_clip"): "grad_clip",
        ("evaluation", "interval"): "evaluation_interval",
    }
)
OUR_NAMES: Mapping[str, tuple[str, str]] = MappingProxyType({rllib: ours for ours, rllib in RLLIB_NAMES.items()})

# RLlib switches these off with None, we with 0.
_NONE_IS_ZERO = frozenset({"evaluation_interval", "grad_clip"})

_BATCH = "a batch is training.queries_per_step × training.group_size responses"
WITHOUT_EFFECT: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("training", "train_batch_size"): _BATCH,
        ("training", "train_batch_size_per_learner"): _BATCH,
        ("training", "minibatch_size"): "training.minibatches says into how many a batch is split",
        ("training", "num_epochs"): "each batch is passed once, in training.minibatches optimizer steps",
        ("training", "gamma"): "an episode is rewarded as a whole",
    }
)


def our_name(section: str, key: str) -> str:
    """Our name of what may be RLlib's: `evaluation_interval` is `interval` in the section evaluation."""
    owner, name = OUR_NAMES.get(key, (section, key))
    return name if owner == section else key


def to_rllib(rllib_name: str, value: Any) -> Any:
    """Our value as RLlib's attribute holds it."""
    return None if rllib_name in _NONE_IS_ZERO and value == 0 else value


def from_rllib(rllib_name: str | None, value: Any) -> Any:
    """RLlib's value as our setting holds it."""
    return 0 if rllib_name in _NONE_IS_ZERO and value is None else value


def rllib_arguments(section: str) -> frozenset[str]:
    """The arguments of RLlib's own fluent method of that name; empty when RLlib has no such method."""
    method = getattr(AlgorithmConfig, section, None)
    return frozenset(inspect.signature(method).parameters) - {"self"} if callable(method) else frozenset()


def is_search_space(value: object) -> bool:
    """Whether a value is one that Ray Tune replaces, trial by trial."""
    return isinstance(value, Domain) or (isinstance(value, Mapping) and set(value) == {"grid_search"})
