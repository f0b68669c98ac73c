"""AlgorithmConfig with sections: validated, immutable settings that agree with RLlib's flat attributes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided

from algorithms.config.errors import ConfigError, no_such_section, shown
from algorithms.config.machine import EnvRunnerSettings, LearnerSettings, RLModuleSettings
from algorithms.config.rllib_names import (
    DEFAULT_DURATION,
    OF_EVALUATION,
    OUR_NAMES,
    RLLIB_NAMES,
    as_evaluation,
    check_agrees,
    check_unset,
    from_rllib,
    holds_search_space,
    is_search_space,
    our_name,
    rllib_arguments,
    to_rllib,
)
from algorithms.config.schema import Settings, unknown_key
from algorithms.config.secrets import References
from algorithms.config.sections import (
    SECTIONS,
    EnvironmentSettings,
    EvaluationSettings,
    HistorySettings,
    RewardSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm


_SUFFIX = "_settings"
# Of files beside the sections of a configuration, and the configuration itself in its rules.
_TAKEN = ("run", "algorithm", "base", "benchmarks", "sft", "config")
# The settings of section `training` that name methods.
PLUGIN_SETTINGS = ("mechanisms", "query_sampler", "advantage", "objective")


@dataclass
class Measured:
    """What is known beside the settings, once it was looked at; to be changed also where settings are frozen.

    Args:
        run_steps: `run.steps`.
        is_checked: whether model, environment and data were checked, or are not to be.
        engine_length: tokens of the longest sequence that a vLLM engine is expected to see.
        engine_context: tokens that it is started with: more, where an environment may write more than expected.
        engine_cache_bytes: of a vLLM engine on a CPU.
        host: where these three were measured.
        reward_actors: names of the actors that hold the reward functions.
        teacher_parameters: the teacher's size; 0 where there is none.
    """

    run_steps: int | None = None
    is_checked: bool = False
    engine_length: int | None = None
    engine_context: int | None = None
    engine_cache_bytes: int | None = None
    host: str = ""
    reward_actors: tuple[str, ...] = ()
    teacher_parameters: int = 0


class BaseConfig(AlgorithmConfig):
    """The base of every configuration of this library; `BaseConfig` has the sections.

    A section is a fluent method and an immutable attribute `<section>_settings`. Where a setting is an
    attribute of RLlib's too (`training.lr` is `config.lr`), the two never differ, whichever is set.
    """

    SECTIONS: ClassVar[Mapping[str, type[Settings]]] = SECTIONS
    TRAINS: ClassVar[bool] = True  # else it reads a run's file to evaluate it

    environment_settings: EnvironmentSettings
    rl_module_settings: RLModuleSettings
    env_runners_settings: EnvRunnerSettings
    learners_settings: LearnerSettings
    training_settings: TrainingSettings
    reward_settings: RewardSettings
    history_settings: HistorySettings
    evaluation_settings: EvaluationSettings

    def __init__(self, algo_class: "type[Algorithm] | None" = None) -> None:
        super().__init__(algo_class=algo_class)
        self._search_space: dict[str, dict[str, Any]] = {}
        self.measured = Measured()
        self._named_sections: dict[str, type[Settings]] = {}
        self._references: References = {}
        for section, model in self.class_sections().items():
            self._store(section, model())

    @property
    def schedule_steps(self) -> int | None:
        """Return the training steps that the schedule of the learning rate is made for, as far as it is known."""
        return self.training_settings.lr_decay_steps or self.measured.run_steps

    @property
    def references(self) -> References:
        """Return which settings came from environment variables, and how they were written."""
        return self._references

    def refer(self, found: References) -> None:
        """Note settings that came from environment variables."""
        named = {(path[0], our_name(*path[:2]), *path[2:]): texts for path, texts in found.items() if len(path) > 1}
        self._references = self._references | named

    @property
    def sections(self) -> dict[str, type[Settings]]:
        """The sections: those that every such configuration has, and those of what section `training` names."""
        return {**self.class_sections(), **self.__dict__.get("_named_sections", {})}

    @classmethod
    def class_sections(cls) -> dict[str, type[Settings]]:
        """Return the sections that every such configuration has."""
        return dict(cls.SECTIONS)

    def plugin_sections(self, training: TrainingSettings) -> dict[str, type[Settings]]:
        """Return the sections of what section `training` names: none here."""
        return {}

    def extra_prompts(self) -> int:
        """Count the prompts that mechanisms add to a step at most."""
        return 0

    def quoted_tokens(self) -> int:
        """Count the tokens of an attempt that prompts of a mechanism quote at most."""
        return 0

    def enabled_mechanisms(self) -> list[str]:
        """Name the mechanisms whose switch is on."""
        return []

    def own_methods(self) -> list[str]:
        """Describe the user's methods, and the hooks that each has."""
        return []

    @property
    def needs_reference(self) -> bool:
        """Whether learners keep the model that the run began with."""
        return self.training_settings.beta > 0

    @property
    def teacher_setting(self) -> str:
        """Name the setting, `section.key`, of the teacher that learners load; empty where there is none."""
        return ""

    @property
    def teacher_settings(self) -> RLModuleSettings | None:
        """Return which frozen teacher learners load beside the policy; None: none."""
        return None

    def apply(self, sections: Mapping[str, Any]) -> Self:
        """Set `{"section": {"key": value}}`, as a configuration file has it.

        Raises:
            ConfigError: an unknown section or key, or a wrong value.
        """
        # What section `training` names has sections of its own.
        for section, values in sorted(sections.items(), key=lambda item: item[0] != "training"):
            if section not in self.sections:
                raise no_such_section(str(section), str(section), self.sections)
            if not isinstance(values, Mapping | None):
                raise ConfigError(f"{section}: {shown(values)} is not a mapping; fix: write {section}: {{key: value}}")
            self._set(section, values or {}, rllib=False)
        return self

    def to_sections(self) -> dict[str, dict[str, Any]]:
        """Return all settings as plain data, such that `apply` restores them; without RLlib's other settings."""
        return {section: self._settings_of(section).model_dump() for section in self.sections}

    def check_settings(self) -> None:
        """Check rules between settings, without starting or importing anything.

        Raises:
            ConfigError: settings that contradict each other.
        """
        self.check_search_space()

    @classmethod
    def sections_elsewhere(cls) -> frozenset[str]:
        """Return the sections that other algorithms have: a file may be shared with them."""
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
        """Return RLlib's flat dict, which Tune reads.

        A setting is in it once: under RLlib's name if it has one, in `env_config` if the environment gets it,
        else in the plain dict `<section>_settings`.
        """
        flat = super().to_dict()
        search_space = flat.pop("_search_space")
        for argument in OF_EVALUATION:  # their settings are there
            del flat[argument]
        del flat["measured"]
        del flat["_named_sections"]
        del flat["_references"]
        for section in self.sections:
            values = flat.pop(f"{section}{_SUFFIX}").model_dump()
            searched = dict(search_space.get(section, {}))
            flat |= {argument: searched.pop(argument) for argument in OF_EVALUATION if argument in searched}
            named = {RLLIB_NAMES[section, key]: searched[key] for key in searched if (section, key) in RLLIB_NAMES}
            rest = {key: value for key, value in (values | searched).items() if (section, key) not in RLLIB_NAMES}
            flat |= named
            if section == "environment":
                system = rest.pop("system")  # no argument of the constructor
                flat["env_config"] |= {key: value for key, value in rest.items() if key in searched}
                flat |= {} if system is None else {f"environment{_SUFFIX}": {"system": system}}
            elif rest:
                flat[f"{section}{_SUFFIX}"] = rest
        return flat

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set values from RLlib's flat dict, which may also hold sections, `{"training": {...}}`, and single settings.

        A single setting is written `training.group_size`, or `group_size` where one section has it; it comes last.
        """
        plain = {
            key: value.model_dump() if isinstance(value, Settings) else value for key, value in config_dict.items()
        }
        # What `to_dict` gives comes before what was added to it.
        given = dict(sorted(plain.items(), key=lambda item: not item[0].endswith(_SUFFIX)))
        methods: dict[str, Any] = {}
        for key in (f"training{_SUFFIX}", "training"):
            if isinstance(named := given.get(key), Mapping):
                methods |= {name: named[name] for name in PLUGIN_SETTINGS if name in named}
        methods |= {
            name: given[key] for key in given for name in PLUGIN_SETTINGS if self._place_of(key) == ("training", name)
        }
        sections: dict[str, dict[str, Any]] = {}
        flat: dict[str, Any] = {}
        single: dict[str, dict[str, Any]] = {}
        if methods:  # first, as they have sections
            self.apply({"training": methods})
        for key, value in given.items():
            section = key.removesuffix(_SUFFIX)
            if section in self.sections and isinstance(value, Mapping):
                sections.setdefault(section, {}).update(value)
            elif place := self._place_of(key):
                single.setdefault(place[0], {})[place[1]] = value
            else:
                flat[key] = value
        if methods:
            sections["training"] = sections.get("training", {}) | methods
        of_evaluation = {key: flat.pop(key) for key in OF_EVALUATION if key in flat}
        super().update_from_dict(flat)
        self.apply(sections)
        for key, value in of_evaluation.items():
            setattr(self, key, value)
        return self.apply(single)

    def _place_of(self, key: str) -> tuple[str, str] | None:
        """Return section and name of a single setting; None for what is RLlib's, and where several sections have it."""
        section, dot, name = key.partition(".")
        if dot and section in self.sections:
            return section, name
        owners = [section for section, kind in self.sections.items() if key in kind.model_fields]
        return (owners[0], key) if len(owners) == 1 and not hasattr(self, key) else None

    def __setattr__(self, key: str, value: Any) -> None:
        section = key.removesuffix(_SUFFIX)
        if section != key and section in self.sections:
            if not isinstance(value, self.sections[section]):
                raise ConfigError(f"{key}: {shown(value)} is not of type {self.sections[section].__name__}")
            self._store(section, value)
        elif key in OUR_NAMES and f"{OUR_NAMES[key][0]}{_SUFFIX}" in self.__dict__:
            self._set(OUR_NAMES[key][0], {key: value})
        elif key in OF_EVALUATION and f"evaluation{_SUFFIX}" in self.__dict__:
            others = {name: each for name, each in self._search_space.get("evaluation", {}).items() if name != key}
            searched = {key: value} if holds_search_space(value) else {}
            self._search_space = {**self._search_space, "evaluation": others | searched}
            if searched:
                return
            meant = as_evaluation(key, value)
            check_unset(key, meant, self.evaluation_settings)
            self._set("evaluation", meant)
            if key == "evaluation_duration":  # the other one would set RLlib's copy for evaluations too
                super().__setattr__(key, value)
        elif key == "env_config" and f"environment{_SUFFIX}" in self.__dict__:
            before = self.__dict__[f"environment{_SUFFIX}"]
            blank = EnvironmentSettings(id=before.id, system=before.system)
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
        if self._is_frozen:
            raise AttributeError(
                f"{section}: the configuration is frozen, as that of an algorithm that was built; fix: "
                f"config.copy(copy_frozen=False).{section}(…)"
            )
        model = self.sections[section]
        ours: dict[str, Any] = {}
        searched: dict[str, Any] = {}
        passed_on: dict[str, Any] = {}
        for key, value in given.items():
            name = our_name(section, key)
            if value is NotProvided:
                continue
            if name in model.model_fields:
                target = searched if is_search_space(value) else ours
                target[name] = from_rllib(key, RLLIB_NAMES.get((section, name)), value)
            elif rllib and key in rllib_arguments(section):
                passed_on[key] = value
            else:
                raise unknown_key(section, str(key), self.sections)
        changed = self._settings_of(section).changed(section, ours)
        if section == "evaluation" and (duration := self.evaluation_duration) != DEFAULT_DURATION:
            check_agrees("evaluation_duration", as_evaluation("evaluation_duration", duration), ours)
        self._store(section, changed)
        kept = {key: value for key, value in self._search_space.get(section, {}).items() if key not in ours}
        self._search_space = {**self._search_space, section: kept | searched}
        if passed_on:
            getattr(super(), section)(**passed_on)
        return self

    def _store(self, section: str, settings: Settings) -> None:
        before = self.__dict__.get(f"{section}{_SUFFIX}")
        if isinstance(settings, TrainingSettings):
            self._name_sections(self.plugin_sections(settings))
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

    def _name_sections(self, named: Mapping[str, type[Settings]]) -> None:
        """Take the sections of what section `training` names now; those that were there already keep their values."""
        own, before = self.class_sections(), self._named_sections
        for section, model in named.items():
            if own.get(section, model) is not model or section in _TAKEN:
                raise ConfigError(
                    f"{section}: the library has a section of this name; fix: give {model.__name__} another name"
                )
        new = {section: model for section, model in named.items() if section not in own}
        for section in before.keys() - new.keys():
            del self.__dict__[f"{section}{_SUFFIX}"]
            self._search_space.pop(section, None)
        self._named_sections = new
        for section in [section for section in new if before.get(section) is not new[section]]:
            self._store(section, new[section]())
