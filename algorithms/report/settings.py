"""The settings of several runs side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

# Where a run lies and what it is called tell runs apart, not what they did.
_NAMES = ("run.name", "run.dir")


def flat_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """`section.key` → the value as one writes it in YAML; `algorithm` has no section."""
    flat: dict[str, str] = {}
    for section, values in config.items():
        if isinstance(values, Mapping):
            flat |= {f"{section}.{key}": _text(value) for key, value in values.items()}
        else:
            flat[section] = _text(values)
    return flat


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The names whose values are not the same in all runs, in the order in which they appear."""
    names = dict.fromkeys(name for one in settings for name in one if name not in _NAMES)
    return [name for name in names if len({one.get(name) for one in settings}) > 1]


def _text(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix("...\n").strip()
    )
