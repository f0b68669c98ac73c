"""Methods named in a setting: those of the library by name, a user's as `module:Class`."""

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar, TypeVar

from algorithms.config.errors import ConfigError, close_match, did_you_mean, shown
from algorithms.config.schema import Settings

T = TypeVar("T")
P = TypeVar("P", bound="Plugin")
_ALMOST = 0.8


class Plugin:
    """A mechanism, query sampler, advantage estimator, objective, other loss term, or stop condition.

    Attributes:
        name: the library's name for it; empty if its section is the name.
        section: its section of the configuration; empty if it has none.
        settings_class: its settings. A loss term takes them from `term(…)`, other kinds from their section.
        per_token: whether it gives the tokens of one response different advantages.
        named_in: of a base class, where classes derived from it are named: a format for "module:Class".
        needed: of a base class, the hooks that a class has to define; in "one or other" one is enough.
    """

    name: ClassVar[str] = ""
    section: ClassVar[str] = ""
    settings_class: ClassVar[type[Settings]] = Settings
    per_token: ClassVar[bool] = False
    named_in: ClassVar[str]
    needed: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check(cls, settings: Any, config: Any) -> None:
        """Raise ConfigError where its settings contradict others (a `BaseConfig`); called also when it is off."""


@functools.cache
def find_plugins(package: str, base: type[P], without: tuple[str, ...] = ()) -> Mapping[str, type[P]]:
    """Return the classes derived from `base` that the files of a package define, by name, but for some files."""
    folder = importlib.import_module(package)
    files = [each.name for each in pkgutil.iter_modules(folder.__path__) if each.name not in ("__main__", *without)]
    modules = [importlib.import_module(f"{package}.{name}") for name in files]
    own = [kind for module in modules for kind in vars(module).values() if _is_defined_in(kind, module.__name__, base)]
    named = {vars(kind).get("name", vars(kind).get("section", "")): kind for kind in own}
    return MappingProxyType({name: kind for name, kind in named.items() if name})


def _is_defined_in(kind: object, module: str, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == module


def load_plugin(
    setting: str, name: str, base: type[T], registered: Mapping[str, type[T]] = MappingProxyType({})
) -> type[T]:
    """Return the class that a setting names: a registered one, or one of the user's own.

    Args:
        setting: `section.key`, for errors.
        name: a key of `registered`, or "module:Class"; the module is imported.
        base: what the class has to derive from.
        registered: the library's own.

    Raises:
        ConfigError: one line that names the setting and the fix: no such name, module or class, a module that fails
            when it is imported, a class that does not derive from `base`, or one without a hook that it needs or with
            one spelled wrong.
    """
    if name in registered:
        return registered[name]
    line = f"{setting}: {shown(name)}"
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        known = f"one of {', '.join(registered)}, or a class" if registered else "a class"
        near = close_match(name, registered)
        ending = f"did you mean {near}? (or write module:Class)" if near else "fix: write module:Class"
        raise ConfigError(f"{line} is not {known}; {ending}")
    path = Path(module_name.removesuffix(".py"))
    if len(path.parts) > 1 or (module_name.endswith(".py") and Path(module_name).is_file()):
        below = all(map(str.isidentifier, path.parts))
        dotted, folder = (".".join(path.parts), "") if below else (path.name, f", with {path.parent} on PYTHONPATH")
        raise ConfigError(f"{line} names a file, not a module; fix: write {dotted}:{class_name}{folder}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # anything can go wrong in a module that somebody else wrote
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{line}: {module_name} cannot be imported ({reason}); fix: install it, or add its folder to PYTHONPATH"
        ) from error
    found = getattr(module, class_name, None)
    nearest: Any = next((kind for kind in getattr(found, "__mro__", ()) if "named_in" in vars(kind)), base)
    if not isinstance(found, type) or not issubclass(found, base):
        if nearest is not base:
            fix = nearest.named_in.format(name)
            raise ConfigError(f"{line} is derived from {nearest.__name__}, not from {base.__name__}; fix: {fix}")
        classes = {key: value for key, value in vars(module).items() if isinstance(value, type) and value is not base}
        own = [key for key, value in classes.items() if issubclass(value, base)]
        fix = did_you_mean(class_name, own) if own else "write one"
        origin = f"{base.__module__}.{base.__qualname__}"
        raise ConfigError(f"{line}: {module_name} has no class {class_name} derived from {origin}; fix: {fix}")
    _check_spelling(line, found, nearest)
    if lacking := [
        each for each in nearest.needed if all(_is_inherited(name, found, nearest) for name in each.split(" or "))
    ]:
        raise ConfigError(f"{line} does not define {', '.join(lacking)}; fix: write it, as {nearest.__name__} says")
    return found


def _is_inherited(name: str, kind: type, base: type) -> bool:
    return inspect.getattr_static(kind, name) is inspect.getattr_static(base, name)


def hooks(kind: type, base: type) -> list[str]:
    """Return the names of the hooks of `base` that a class has of its own, in the order of `base`."""
    return [name for name in _methods(base, above=Plugin) if not _is_inherited(name, kind, base)]


def _check_spelling(line: str, kind: type, base: type) -> None:
    """Raise ConfigError for a method that is almost a hook: nothing would call it, and the run be plain GRPO."""
    known, own = _methods(base, above=Plugin), _methods(kind, above=base)
    for name in own:
        if name not in known and (near := difflib.get_close_matches(name, set(known) - set(own), n=1, cutoff=_ALMOST)):
            raise ConfigError(
                f"{line}: {name} is not a hook, and nothing calls it; did you mean {near[0]}? (or begin the name of a "
                "helper with _)"
            )


def _methods(kind: type, above: type) -> list[str]:
    """Return the names of the public methods of a class and its bases, without those of `above` and its bases."""
    own = [vars(each) for each in reversed(kind.__mro__) if not issubclass(above, each)]
    return list(dict.fromkeys(name for members in own for name, value in members.items() if _is_hook(name, value)))


def _is_hook(name: str, value: object) -> bool:
    return not name.startswith("_") and isinstance(value, FunctionType | classmethod | staticmethod)
