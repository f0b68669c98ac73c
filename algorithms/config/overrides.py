"""Overrides of the command line: `section.key=value`, read by the type of the setting."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from algorithms.config.base import our_name
from algorithms.config.errors import ConfigError, did_you_mean, shown
from algorithms.config.schema import Settings, takes_text, unknown_key

_NULL = ("", "null", "~")


@dataclass(frozen=True)
class Override:
    """A parsed override; `entry` is the path within a setting that is a mapping, as in `columns.problem`."""

    section: str
    key: str
    entry: tuple[str, ...]
    value: Any


def parse_override(text: str, sections: Mapping[str, type[Settings]]) -> Override:
    """Read `section.key=value`.

    The value of a text setting is taken as it is, whatever it looks like (`environment.data=123`); all others
    are read as YAML.

    Raises:
        ConfigError: not of this form, an unknown section or key, or a value that is no YAML.
    """
    name, equals, raw = text.partition("=")
    section, *path = name.strip().split(".")
    if not equals:
        raise ConfigError(f"{shown(text)}: not an override; fix: write section.key=value")
    if section not in sections:
        owners = [f"{owner}.{section}" for owner, model in sections.items() if section in model.model_fields]
        ending = f"did you mean {owners[0]}?" if owners and not path else did_you_mean(section, sections)
        raise ConfigError(f"{name}: no such section; {ending}")
    if not path:
        raise ConfigError(f"{name}: is a section; fix: write {section}.key=value")
    key, *entry = path
    field = sections[section].model_fields.get(our_name(section, key))
    if field is None:
        raise unknown_key(section, key, sections)
    if entry and get_origin(field.annotation) is not dict:
        raise ConfigError(f"{name}: {section}.{key} is not a mapping; fix: write {section}.{key}=value")
    if takes_text(field):
        return Override(section, our_name(section, key), (), _text(name, raw))
    if entry and get_args(field.annotation)[1] is str:
        return Override(section, key, tuple(entry), _text(name, raw) or "")
    return Override(section, our_name(section, key), tuple(entry), _from_yaml(name, raw))


def as_override(name: str, value: object) -> str:
    """Return the override that gives `section.key` this value."""
    return f"{name}={json.dumps(value, default=str)}"


def _text(name: str, raw: str) -> str | None:
    """Text as it stands; null or nothing for none; quotes around all of it for text that looks like null."""
    if raw in _NULL:
        return None
    if len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'":
        value = _from_yaml(name, raw)
        return value if isinstance(value, str) else raw
    return raw


def _from_yaml(name: str, raw: str) -> Any:
    try:
        # OmegaConf's reading of YAML takes 1e-6 for a number; plain PyYAML does not.
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={raw}"]), resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeError, RecursionError) as error:
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"{name}: {shown(raw)} cannot be read: {reason}") from None
    return parsed["value"] if isinstance(parsed, dict) else None
