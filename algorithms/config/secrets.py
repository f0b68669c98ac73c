"""Hide secrets of a configuration from everything that leaves the machine: trackers, model cards, report pages."""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"
# Environment variables and headers of MCP servers: docs/guides/tools.md puts keys there.
_SECTIONS = ("env", "headers")
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8  # characters of a variable's value: a shorter one is part of too much other text
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/?#@\s]+(?=@)")


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
