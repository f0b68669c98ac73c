"""The library's methods by name, and how a configuration finds those that it names. One line a method.

Methods live in layers above this one, so they stand here as `module:Class`, as a user's own do in a configuration.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from algorithms.config.base import BaseConfig
from algorithms.config.errors import ConfigError
from algorithms.config.plugins import Plugin, load_plugin
from algorithms.config.schema import Settings
from algorithms.config.sections import SECTIONS, TrainingSettings
from algorithms.grpo.advantages import ADVANTAGES, AdvantageEstimator
from algorithms.grpo.mechanism import Mechanism, Services
from algorithms.grpo.query_sampler import QuerySampler
from algorithms.learner.loss import OBJECTIVES, load_objective

MECHANISMS: Mapping[str, str] = MappingProxyType(
    {
        "replay": "algorithms.r3_grpo.replay:Replay",
        "reflection": "algorithms.r3_grpo.reflection:Reflection",
        "ranking": "algorithms.r3_grpo.ranking:Ranking",
        "covariance": "algorithms.methods.covariance:Covariance",
        "entropy_bonus": "algorithms.methods.entropy_bonus:EntropyBonus",
        "self_filter": "algorithms.methods.self_filter:SelfFilter",
        "knapsack": "algorithms.methods.knapsack:Knapsack",
        "gdro": "algorithms.methods.gdro:Gdro",
        "rorecomp": "algorithms.methods.rorecomp:RoRecomp",
    }
)
QUERY_SAMPLERS: Mapping[str, str] = MappingProxyType(
    {
        "epoch": "algorithms.grpo.query_sampler:EpochSampler",
        "posterior": "algorithms.methods.posterior:PosteriorSampler",
        "greso": "algorithms.methods.greso:GresoSampler",
        "vas": "algorithms.methods.vas:VasSampler",
        "window": "algorithms.methods.window:WindowSampler",
        "adcl": "algorithms.methods.adcl:AdclSampler",
        "exgrpo": "algorithms.methods.exgrpo:ExGrpoSampler",
    }
)


def named_mechanisms(training: TrainingSettings, own: Sequence[type[Mechanism]] = ()) -> list[type[Mechanism]]:
    """Load the classes of `training.mechanisms`, but for those that are an algorithm's own: a preset may name them.

    Raises:
        ConfigError: one cannot be loaded, or is named twice.
    """
    found = [load_plugin("training.mechanisms", name, Mechanism, MECHANISMS) for name in training.mechanisms]
    if len(set(found)) < len(found):
        raise ConfigError(f"training.mechanisms: {training.mechanisms} names one twice; fix: name each once")
    return [kind for kind in found if kind not in own]


def query_sampler(training: TrainingSettings) -> type[QuerySampler]:
    """Load the class of `training.query_sampler`; raises ConfigError if it cannot be loaded."""
    return load_plugin("training.query_sampler", training.query_sampler, QuerySampler, QUERY_SAMPLERS)


def advantage_estimator(training: TrainingSettings) -> type[AdvantageEstimator]:
    """Load the class of `training.advantage`; raises ConfigError if it cannot be loaded."""
    return load_plugin("training.advantage", training.advantage, AdvantageEstimator, ADVANTAGES)


def all_plugins() -> list[type[Plugin]]:
    """Load everything that the library has and that has a section of settings."""
    mechanisms = [load_plugin("training.mechanisms", name, Mechanism, MECHANISMS) for name in MECHANISMS]
    samplers = [load_plugin("training.query_sampler", name, QuerySampler, QUERY_SAMPLERS) for name in QUERY_SAMPLERS]
    estimators = [load_plugin("training.advantage", name, AdvantageEstimator, ADVANTAGES) for name in ADVANTAGES]
    objectives = [load_objective(name) for name in OBJECTIVES]
    return [kind for kind in (*mechanisms, *samplers, *estimators, *objectives) if kind.section]


def all_sections() -> dict[str, type[Settings]]:
    """Return the sections of the library: GRPO's and those of all its methods."""
    return {**SECTIONS, **{kind.section: kind.settings_class for kind in all_plugins()}}


def build_estimator(config: BaseConfig) -> AdvantageEstimator:
    """Build the advantage estimator that `training.advantage` names, with its settings."""
    kind = advantage_estimator(config.training_settings)
    return kind(settings_of(kind, config))


def settings_of(kind: type[Plugin], config: BaseConfig) -> object:
    """Return a plug-in's section of a configuration; None for one without settings."""
    return getattr(config, f"{kind.section}_settings") if kind.section else None


def enabled(kinds: "tuple[type[Mechanism], ...]", config: BaseConfig) -> list[type[Mechanism]]:
    """Return the mechanisms whose switch is on, in order."""
    return [kind for kind in kinds if getattr(settings_of(kind, config), "enabled", True)]


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
    on = {kind.section for kind in active}
    for kind in active:
        for other in sorted(kind.conflicts & on):
            switch = "training.query_sampler" if issubclass(kind, QuerySampler) else f"{kind.section}.enabled"
            raise ConfigError(f"{switch}: does not go together with {other}; fix: {other}.enabled=false")


def build_mechanisms(kinds: "tuple[type[Mechanism], ...]", services: Services) -> list[Mechanism]:
    """Build the enabled mechanisms, in order."""
    return [kind(settings_of(kind, services.config), services) for kind in enabled(kinds, services.config)]
