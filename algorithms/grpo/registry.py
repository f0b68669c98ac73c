"""The library's methods by name, as a configuration finds them: their packages are scanned."""

from collections.abc import Sequence
from typing import Any, cast

from algorithms.config.base import BaseConfig
from algorithms.config.errors import ConfigError, shown
from algorithms.config.plugins import P, Plugin, find_plugins, hooks, load_plugin
from algorithms.config.schema import Settings
from algorithms.config.sections import SECTIONS, TrainingSettings
from algorithms.grpo.advantages import PLAIN, AdvantageEstimator
from algorithms.grpo.built_in import KLReward, TruncationMask
from algorithms.grpo.mechanism import Mechanism, Services
from algorithms.grpo.query_sampler import EpochSampler, QuerySampler
from algorithms.losses.base import PACKAGE, Objective, load_objective

# What a setting of section `training` switches on; they come before all others.
BUILT_IN: tuple[type[Mechanism], ...] = (KLReward, TruncationMask)
# Packages of methods, in layers above this one, and their files that are no methods.
METHODS, OTHERS = ("algorithms.r3_grpo", "algorithms.methods"), ("algorithm", "config")


def mechanisms() -> dict[str, type[Mechanism]]:
    """Return the library's mechanisms by name."""
    return {name: kind for name, kind in _methods(Mechanism).items() if not issubclass(kind, QuerySampler)}


def query_samplers() -> dict[str, type[QuerySampler]]:
    """Return the library's query samplers by name."""
    return {EpochSampler.name: EpochSampler, **_methods(QuerySampler)}


def advantage_estimators() -> dict[str, type[AdvantageEstimator]]:
    """Return the library's advantage estimators by name."""
    return {**{kind.name: kind for kind in PLAIN}, **_methods(AdvantageEstimator)}


def _methods(base: type[P]) -> dict[str, type[P]]:
    found: dict[str, Any] = {}
    for package in METHODS:
        found |= find_plugins(package, cast(Any, base), OTHERS)
    return found


def named_mechanisms(training: TrainingSettings, own: Sequence[type[Mechanism]] = ()) -> list[type[Mechanism]]:
    """Load the classes of `training.mechanisms`, except an algorithm's own ones, which a preset may name too.

    Raises:
        ConfigError: one cannot be loaded, is a query sampler, or is named twice.
    """
    found = [load_plugin("training.mechanisms", name, Mechanism, mechanisms()) for name in training.mechanisms]
    for name, kind in zip(training.mechanisms, found, strict=True):
        if issubclass(kind, QuerySampler):
            raise ConfigError(
                f"training.mechanisms: {shown(name)} is a query sampler; fix: training.query_sampler={name}"
            )
    if len(set(found)) < len(found):
        raise ConfigError(f"training.mechanisms: {training.mechanisms} names one twice; fix: name each once")
    return [kind for kind in found if kind not in own]


def query_sampler(training: TrainingSettings) -> type[QuerySampler]:
    """Load the class of `training.query_sampler`; raises ConfigError if it cannot be loaded."""
    return load_plugin("training.query_sampler", training.query_sampler, QuerySampler, query_samplers())


def advantage_estimator(training: TrainingSettings) -> type[AdvantageEstimator]:
    """Load the class of `training.advantage`; raises ConfigError if it cannot be loaded."""
    return load_plugin("training.advantage", training.advantage, AdvantageEstimator, advantage_estimators())


def all_plugins() -> list[type[Plugin]]:
    """Load every class of the library that has a section of settings."""
    methods = [*mechanisms().values(), *query_samplers().values(), *advantage_estimators().values()]
    return [kind for kind in (*methods, *find_plugins(PACKAGE, Objective).values()) if kind.section]


def all_sections() -> dict[str, type[Settings]]:
    """Return the sections of the library: GRPO's and those of all its methods."""
    return {**SECTIONS, **{kind.section: kind.settings_class for kind in all_plugins()}}


def own_methods(training: TrainingSettings, kinds: Sequence[type[Mechanism]]) -> list[str]:
    """Describe each class that section `training` names as `module:Class`: the setting, the class, and its hooks.

    Args:
        training: the section.
        kinds: the mechanisms that are switched on.
    """
    found: list[tuple[str, type[Plugin], type]] = [
        ("query_sampler", query_sampler(training), QuerySampler),
        ("advantage", advantage_estimator(training), AdvantageEstimator),
        ("objective", load_objective(training.objective), Objective),
    ]
    named = [(setting, kind, base) for setting, kind, base in found if ":" in getattr(training, setting)]
    mechanisms = zip(training.mechanisms, named_mechanisms(training), strict=True)
    named[:0] = [("mechanisms", kind, Mechanism) for name, kind in mechanisms if ":" in name and kind in kinds]
    return [
        f"training.{setting}: {kind.__module__}:{kind.__qualname__}, "
        + (f"hooks {', '.join(there)}" if (there := hooks(kind, base)) else "NO HOOK: it changes nothing")
        for setting, kind, base in named
    ]


def build_estimator(config: BaseConfig) -> AdvantageEstimator:
    """Build the advantage estimator that `training.advantage` names, with its settings."""
    kind = advantage_estimator(config.training_settings)
    estimator = kind(settings_of(kind, config))
    estimator.most_paid = 1.0 + config.reward_settings.length_bonus
    return estimator


def settings_of(kind: type[Plugin], config: BaseConfig) -> object:
    """Return a plug-in's section of a configuration; None for one without settings."""
    return getattr(config, f"{kind.section}_settings") if kind.section else None


def enabled(kinds: "tuple[type[Mechanism], ...]", config: BaseConfig) -> list[type[Mechanism]]:
    """Return the mechanisms whose switch is on, in order."""
    return [kind for kind in kinds if kind.is_enabled(settings_of(kind, config), config)]


def check_plugins(config: BaseConfig, mechanisms: "tuple[type[Mechanism], ...]") -> None:
    """Check each plug-in's settings, and that the enabled mechanisms go together.

    Raises:
        ConfigError: they do not.
    """
    training = config.training_settings
    for kind in (
        *mechanisms,
        query_sampler(training),
        advantage_estimator(training),
        load_objective(training.objective),
    ):
        kind.check(settings_of(kind, config), config)
    active = [*enabled(mechanisms, config), query_sampler(training)]
    _check_ratio(training, [*active, advantage_estimator(training)])
    _check_order(active)
    _check_teachers([kind for kind in active if kind.uses_teacher], config)
    on = {kind.section for kind in active}
    for kind in active:
        for other in sorted(kind.conflicts.keys() & on):
            switch = "training.query_sampler" if issubclass(kind, QuerySampler) else f"{kind.section}.enabled"
            why = kind.conflicts[other]
            raise ConfigError(f"{switch}: cannot be combined with {other}: {why}; fix: {other}.enabled=false")


def _check_order(active: Sequence[type[Mechanism]]) -> None:
    """Raise ConfigError where advantages that a mechanism keeps for later steps are changed behind it."""
    for place, kind in enumerate(active):
        for later in active[place + 1 :] if kind.keeps_advantages else ():
            if "advantages" in hooks(later, Mechanism):
                first, name = _title(kind), _title(later)
                raise ConfigError(
                    f"training.mechanisms: {first} keeps advantages for later steps, and {name} changes them behind "
                    f"it; fix: write {first} behind {name}, or leave one of them out"
                )


def _title(kind: type[Plugin]) -> str:
    """Return what a message calls a class: its section, or its own name where it has none."""
    return kind.section or kind.__name__


def _check_teachers(kinds: list[type[Mechanism]], config: BaseConfig) -> None:
    """Raise ConfigError where mechanisms name different teachers: learners hold one."""
    for name in ("teacher", "teacher_revision"):
        for kind in kinds[1:]:
            first, own = (getattr(settings_of(each, config), name, None) for each in (kinds[0], kind))
            if own != first:
                raise ConfigError(
                    f"{kind.section}.{name}: {shown(own)} is not that of {kinds[0].section}, and learners hold only "
                    f"one; fix: {kind.section}.{name}={'null' if first is None else first}"
                )


def _check_ratio(training: TrainingSettings, active: Sequence[type[Plugin]]) -> None:
    """Refuse one ratio for all tokens of a response where tokens have advantages of their own: it evens them out."""
    kind = next((kind for kind in active if kind.per_token), None)
    shared = "ratio_level" if training.ratio_level == "sequence" else ""
    shared = "objective" if load_objective(training.objective).shares_ratio else shared
    if kind is not None and shared:
        better = "token" if shared == "ratio_level" else "clip"
        raise ConfigError(
            f"training.{shared}: {getattr(training, shared)} has one ratio per response, and {_title(kind)} "
            f"gives each token its own advantage; fix: training.{shared}={better}"
        )


def build_mechanisms(kinds: "tuple[type[Mechanism], ...]", services: Services) -> list[Mechanism]:
    """Build the enabled mechanisms, in order."""
    return [kind(settings_of(kind, services.config), services) for kind in enabled(kinds, services.config)]
