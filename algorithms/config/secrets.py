"""Keep secrets of a configuration out of all that is written and shown: run directories, trackers, cards, pages."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from algorithms.config.plain_yaml import interpolated

HIDDEN = "(hidden)"
# Environment variables and headers of MCP servers: docs/guides/tools.md puts keys there.
_SECTIONS = ("env", "headers")
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8  # characters of a variable's value: a shorter one is part of too much other text
_ENVIRONMENT = "oc.env:"
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/?#@\s]+(?=@)")

# The value and the text that it came from, by the path to it.
References = dict[tuple[str, ...], tuple[str, str]]


def references(written: Any, resolved: Any) -> References:
    """Find text that came from environment variables, by `${oc.env:NAME}`, also through other settings.

    Args:
        written: plain data with its interpolations.
        resolved: the same data, without.
    """
    raw = dict(_leaves(written))

    def text_of(path: tuple[str, ...]) -> str:
        text: str = raw[path]
        for name, target in interpolated(text, path):
            if isinstance(raw.get(target), str):
                text = text.replace(name, text_of(target))
        return text

    found: References = {}
    for path, value in _leaves(resolved):
        if isinstance(value, str) and isinstance(raw.get(path), str) and "${" in raw[path]:
            text = text_of(path)
            if _ENVIRONMENT in text:
                found[path] = value, text
    return found


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _leaves(entry, (*path, str(number)))
    else:
        yield path, value


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with `(hidden)` in place of what may be secret; its keys stay.

    Hidden are all values below a key `env` or `headers`, log-ins in URLs, and the values of environment variables
    that are called a key, token, secret, password or credential, which a file got by `${oc.env:NAME}`.

    Args:
        config: plain data: section → setting → value.
    """
    known = [value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST]
    known.sort(key=len, reverse=True)  # the longer first: one may be a part of another
    return {key: _shown(key, value, known) for key, value in config.items()}


def _shown(key: object, value: Any, known: list[str]) -> Any:
    if key in _SECTIONS and value:
        return _all_hidden(value)
    if isinstance(value, Mapping):
        return {name: _shown(name, entry, known) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(None, entry, known) for entry in value]
    if not isinstance(value, str):
        return value
    for secret in known:
        value = value.replace(secret, HIDDEN)
    return _PASSWORD_IN_URL.sub(HIDDEN, value)


def _all_hidden(value: Any) -> Any:
    return {name: _all_hidden(entry) for name, entry in value.items()} if isinstance(value, Mapping) else HIDDEN
