"""Keep secrets of a configuration out of all that is written and shown: run directories, trackers, cards, pages."""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, resolvers

from algorithms.config.plain_yaml import Path, at_path, interpolated

HIDDEN = "(hidden)"
# Environment variables and headers of MCP servers: docs/guides/tools.md puts keys there.
_SECTIONS = ("env", "headers")
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8  # characters of a variable's value: a shorter one is part of too much other text
_MOST_NESTED = 100
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/?#@\s]+(?=@)")

Container = DictConfig | ListConfig
# The value and the text that it came from, by the path to it.
References = dict[Path, tuple[Any, str]]


def references(read: Container) -> References:
    """Find what came from environment variables, by `${oc.env:NAME}`, also through other settings and resolvers.

    Text and containers are found whatever the variable is called; numbers and the like where it is called as a
    secret is: a resume keeps the other ones.

    Args:
        read: a configuration with its interpolations.
    """
    written = OmegaConf.to_container(read)
    return {
        path: (value, _self_contained(at_path(written, path), path, written))
        for path, value, variables in _interpolations(read, ())
        if variables and (isinstance(value, str | Mapping | list) or any(map(_SECRET_VARIABLE.search, variables)))
    }


def _interpolations(node: Any, path: Path) -> Iterator[tuple[Path, Any, list[str]]]:
    """Every setting that is interpolated, with its value and the environment variables that were read for it."""
    keys: Any = node if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        if OmegaConf.is_missing(node, key):
            continue
        if OmegaConf.is_interpolation(node, key):
            with _watched() as variables:
                value = node[key]
                value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            yield (*path, str(key)), value, variables
        elif OmegaConf.is_config(node[key]):
            yield from _interpolations(node[key], (*path, str(key)))


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Note the environment variables that are read."""
    names: list[str] = []

    def read(*arguments: Any) -> Any:
        names.append(str(arguments[0]))
        return resolvers.oc.env(*arguments)

    _read_variables_by(read)
    try:
        yield names
    finally:
        _read_variables_by(resolvers.oc.env)


def _read_variables_by(read: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OmegaConf 2.4 renames the function, and 2.3 has no other name for it
        OmegaConf.register_new_resolver("oc.env", read, replace=True)


def _self_contained(text: str, path: Path, written: Any) -> str:
    """Return an interpolation with the text of other settings in place of their names, as far as these are text."""
    for _ in range(_MOST_NESTED):
        named = ((name, target, at_path(written, target)) for name, target in interpolated(text, path))
        name, target, other = next((each for each in named if isinstance(each[2], str)), ("", (), ""))
        if not name:
            break
        text = text.replace(name, _self_contained(other, target, written))
    return text


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with `(hidden)` in place of what may be secret; its keys stay.

    Hidden are all values below a key `env` or `headers`, log-ins in URLs, and the values of environment variables
    that are called a key, token, secret, password or credential, which a file got by `${oc.env:NAME}`.

    Args:
        config: plain data: section → setting → value.
    """
    known = _known()
    return {key: _shown(key, value, known) for key, value in config.items()}


def text_without_secrets(text: str) -> str:
    """Return a text with `(hidden)` in place of log-ins in URLs and values of environment variables, as above."""
    return _hidden_in(text, _known())


def _known() -> list[str]:
    known = [value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST]
    return sorted(known, key=len, reverse=True)  # the longer first: one may be a part of another


def _shown(key: object, value: Any, known: list[str]) -> Any:
    if key in _SECTIONS and value:
        return _all_hidden(value)
    if isinstance(value, Mapping):
        return {name: _shown(name, entry, known) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(None, entry, known) for entry in value]
    return _hidden_in(value, known) if isinstance(value, str) else value


def _hidden_in(text: str, known: list[str]) -> str:
    for secret in known:
        text = text.replace(secret, HIDDEN)
    return _PASSWORD_IN_URL.sub(HIDDEN, text)


def _all_hidden(value: Any) -> Any:
    return {name: _all_hidden(entry) for name, entry in value.items()} if isinstance(value, Mapping) else HIDDEN
