"""In which settings two evaluations differ."""

from collections.abc import Iterator, Mapping
from typing import Any

from algorithms.configuration.errors import shown

# They say what is told of the answers, not which answers are drawn.
OF_SCORES = ("evaluation.k", "benchmarks.limits")


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """By `section.key`, `A → B` for each setting that is not the same in both.

    Args:
        first: sections, as in `evaluation.yaml`.
        second: of the other evaluation.
    """
    one, other = dict(_flat(first)), dict(_flat(second))
    return {
        name: f"{_shown(one, name)} → {_shown(other, name)}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name, _shown) != other.get(name, _shown)
    }


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted names, those of mappings one by one; an empty mapping has none."""
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", entry


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return shown(settings[name]) if name in settings else "not set"
