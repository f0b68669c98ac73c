"""What a user may bring along: a class named `module:Class`, with a section of settings of its own."""

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from algorithms.config.errors import ConfigError, nearest, shown
from algorithms.config.schema import Settings

PluginT = TypeVar("PluginT", bound="Plugin")


class Plugin:
    """A mechanism, query sampler, advantage estimator or loss.

    Attributes:
        section: its section of the configuration; "" for one without settings.
        settings_class: that section's settings.
    """

    section: ClassVar[str] = ""
    settings_class: ClassVar[type[Settings]] = Settings

    @classmethod
    def check(cls, settings: Any, config: Any) -> None:
        """Raise ConfigError where its settings contradict others (a `BaseConfig`); called also when it is off."""


def load_plugin(setting: str, name: str, base: type[PluginT], registry: Mapping[str, Any]) -> type[PluginT]:
    """Return the class that a setting names.

    Args:
        setting: where the name stands, for the error: `training.query_sampler`.
        name: a key of the registry, or `module:Class`.
        base: what the class has to be derived from.
        registry: what the library has, by name: classes, or `module:Class` of those in layers above.

    Raises:
        ConfigError: one line that names the setting and the fix.
    """
    target = registry.get(name, name)
    if not isinstance(target, str):
        return target
    module, colon, attribute = target.partition(":")
    if not colon:
        match = nearest(name, registry)
        ending = f"did you mean {match}?" if match else "fix: one of these, or module:Class for one of your own"
        raise ConfigError(f"{setting}: {shown(name)} is not one of {', '.join(registry)}; {ending}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        fix = "fix: start from the folder that holds it, or put that folder on PYTHONPATH"
        raise ConfigError(f"{setting}: {shown(name)}: there is no module {error.name}; {fix}") from None
    except AttributeError:
        raise ConfigError(f"{setting}: {shown(name)}: {module} has no {attribute}; fix: the class's name") from None
    except Exception as error:  # the module is the user's: importing it can raise anything
        raise ConfigError(f"{setting}: {shown(name)}: importing {module} fails: {error!r}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{setting}: {shown(name)} is not a {base.__name__}; fix: derive it from {base.__name__}")
    return found
