"""The parts of a section of settings: frozen models whose fields have a default, limits, a meaning and effects."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

import annotated_types
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from algorithms.config.errors import ConfigError, close_match, shown
from algorithms.config.other_libraries import explain_other_name

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}


@dataclass(frozen=True)
class Meaning:
    """Describes what a field accepts, where its type and range do not."""

    words: str


@dataclass(frozen=True)
class ByMachine:
    """A default that follows from the machine: one where CUDA is, another elsewhere."""

    with_cuda: Any
    without: Any

    def __call__(self) -> Any:
        """Return the default on this machine."""
        import torch

        return self.with_cuda if torch.cuda.device_count() else self.without


class Affects(Flag):
    """What a setting decides in addition to training, or its cost."""

    NOTHING = 0
    MEASUREMENT = auto()
    """What an evaluation measures: numbers from before and after a change cannot be compared."""
    ANSWERS = auto()
    """Which answers an evaluation samples: it cannot be continued after a change."""
    EVALUATION = MEASUREMENT | ANSWERS
    LEARNERS = auto()
    """How learners run beside the engines: an evaluation, which has none, takes the default."""
    CODE = auto()
    """Which code is loaded: the configuration in a run folder, perhaps somebody else's, may not decide it."""


class Settings(BaseModel):
    """One section of the configuration: immutable, no unknown keys, no silent conversion of types.

    `AFFECTS` is what its settings affect, but for those that name effects of their own; see `setting`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    AFFECTS: ClassVar[Affects] = Affects.NOTHING

    def changed(self, section: str, changes: Mapping[str, Any]) -> Self:
        """Return a copy with `changes`.

        Raises:
            ConfigError: an unknown key, or a value of the wrong type or out of range.
        """
        for key in changes:
            if key not in type(self).model_fields:
                raise unknown_key(section, str(key), {section: type(self)})
        plain = {key: self._value(section, key, value) for key, value in changes.items()}
        try:
            return type(self).model_validate({**self.model_dump(), **plain})
        except ValidationError as error:
            failed = str(error.errors()[0]["loc"][0])
        raise wrong_value(section, failed, plain[failed], type(self))

    def _value(self, section: str, key: str, value: Any) -> Any:
        """Return a value as its field takes it; that of settings within a setting changes those that it names."""
        before = getattr(self, key)
        if isinstance(before, Settings) and isinstance(value, Mapping):
            return before.changed(f"{section}.{key}", value)
        return value.item() if isinstance(value, np.generic) else value


Sections = Mapping[str, type[Settings]]


@dataclass(frozen=True)
class _Effects:
    affects: Affects | None = None
    hparam: bool = False
    replaces: str | None = None


def setting(
    default: Any,
    description: str,
    *,
    affects: Affects | None = None,
    hparam: bool = False,
    replaces: str | None = None,
    **limits: Any,
) -> Any:
    """Return a field: a default (a list or dict is copied for each instance), a sentence, limits and effects.

    Args:
        default: its value where nobody sets it, or a `ByMachine`.
        description: its line in the reference.
        affects: what else changes with it; None: what its section affects.
        hparam: whether it is a column of TensorBoard's HPARAMS page.
        replaces: the setting, `section.key`, that is without effect on an evaluation where this one is not null.
        limits: pydantic's `ge`, `lt`, `min_length`, ….
    """
    limits["json_schema_extra"] = {"effects": _Effects(affects, hparam, replaces)}
    if isinstance(default, ByMachine):
        return Field(default_factory=default, description=description, **limits)
    if isinstance(default, list | dict):
        return Field(default_factory=lambda: type(default)(default), description=description, **limits)
    return Field(default, description=description, **limits)


def affects(sections: Sections, name: str, *, unknown: Affects = Affects.NOTHING) -> Affects:
    """Return what `section.key` affects.

    A key that only another version has affects what its section does, one of an unknown section `unknown`.
    """
    section, _, key = name.partition(".")
    if section not in sections:
        return unknown
    own = _effects(sections[section], key.partition(".")[0]).affects
    return sections[section].AFFECTS if own is None else own


def settings_that_affect(sections: Sections, what: Affects) -> dict[str, Any]:
    """Return the defaults of the settings with this effect, by `section.key`."""
    return {
        f"{section}.{key}": default_of(sections[section].model_fields[key])
        for section, key in _keys(sections)
        if what in affects(sections, f"{section}.{key}")
    }


def hyperparameters(sections: Sections) -> list[str]:
    """Return the `section.key` of the settings that are columns of TensorBoard's HPARAMS page."""
    return [f"{section}.{key}" for section, key in _keys(sections) if _effects(sections[section], key).hparam]


def replaced(sections: Sections, values: Mapping[str, Any]) -> set[str]:
    """Return the `section.key` of the settings that others replace where they are set, as in `values`."""
    pairs = ((_effects(sections[section], key).replaces, section, key) for section, key in _keys(sections))
    return {name for name, section, key in pairs if name and (values.get(section) or {}).get(key) is not None}


def _keys(sections: Sections) -> Iterator[tuple[str, str]]:
    return ((section, key) for section, model in sections.items() for key in model.model_fields)


def _effects(model: type[Settings], key: str) -> _Effects:
    field = model.model_fields.get(key)
    extra = field.json_schema_extra if field else None
    effects = extra.get("effects") if isinstance(extra, dict) else None
    return effects if isinstance(effects, _Effects) else _Effects()


def wrong_value(section: str, key: str, value: object, model: type[Settings]) -> ConfigError:
    """Return the error for a value that `section.key` does not take."""
    field = model.model_fields[key]
    line = f"{section}.{key}: {shown(value)} is not {describe(field)}"
    choices = [choice for choice in _choices(field.annotation) if isinstance(choice, str)]
    for kind in filter(lambda member: get_origin(member) is list, _members(field.annotation)):
        (one,) = get_args(kind)
        members = _choices(one)
        if _fits(one, value):
            return ConfigError(f"{line}; fix: {section}.{key}=[{value}]")
        if members and isinstance(value, list) and (unknown := [each for each in value if each not in members]):
            known = ", ".join(map(str, members))
            line = f"{section}.{key}: {shown(unknown[0])} is not one of {known}"
            value, choices = unknown[0], list(members)
    if choices and isinstance(value, str) and (match := close_match(value, choices)):
        return ConfigError(f"{line}; did you mean {match}?")
    if takes_text(field) and isinstance(value, int | float):
        return ConfigError(f'{line}; fix: quote it, "{value}"')
    return ConfigError(f"{line}; the default is {describe_default(field)}")


def _fits(annotation: Any, value: object) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def unknown_key(section: str, key: str, sections: Sections) -> ConfigError:
    """Return the error for a key that a section does not have; it may belong to another section."""
    here = sections[section].model_fields
    elsewhere = [f"{name}.{key}" for name, model in sections.items() if key in model.model_fields]
    if not elsewhere and (theirs := explain_other_name(f"{section}.{key}")):
        return ConfigError(f"{section}.{key}: no such setting; {theirs}")
    match = elsewhere[0] if elsewhere else close_match(key, here)
    if match is None:
        return ConfigError(f"{section}.{key}: no such setting; known: {', '.join(here)}")
    return ConfigError(
        f"{section}.{key}: no such setting; did you mean {match if elsewhere else f'{section}.{match}'}?"
    )


def default_of(field: FieldInfo) -> Any:
    """Return a field's default value as plain data."""
    default = field.get_default(call_default_factory=True, validated_data={})
    return default.model_dump() if isinstance(default, Settings) else default


def nested(field: FieldInfo) -> type[Settings] | None:
    """Return the model of the settings within a setting; None where it has none."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def describe_default(field: FieldInfo) -> str:
    """Write a field's default in words: `vllm` with CUDA, else `transformers`."""
    if isinstance(field.default_factory, ByMachine):
        return f"{shown(field.default_factory.with_cuda)} with CUDA, else {shown(field.default_factory.without)}"
    return shown(default_of(field))


def takes_text(field: FieldInfo) -> bool:
    """Return whether a field holds text (or null), so that its value is never read as a number."""
    return {_bare(member) for member in _members(field.annotation)} <= {str, types.NoneType}


def describe(field: FieldInfo) -> str:
    """Return what a field accepts, in words: `a number > 0 and <= 1, or null`."""
    return _describe(field.annotation, field.metadata)


def _describe(annotation: Any, metadata: list[Any]) -> str:
    for item in metadata:
        if isinstance(item, Meaning):
            return item.words
    members = [member for member in _members(annotation) if member is not types.NoneType]
    if len(members) < len(_members(annotation)):
        return f"{' or '.join(_describe(member, metadata) for member in members)}, or null"
    limits = " and ".join(_limits(metadata))
    if get_origin(annotation) is Annotated:
        return _describe(get_args(annotation)[0], [*get_args(annotation)[1:], *metadata])
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(str(choice) for choice in get_args(annotation))}"
    if get_origin(annotation) is list:
        return f"a list {limits}".rstrip() + f", each {_describe(get_args(annotation)[0], [])}"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return f"a mapping with {', '.join(annotation.model_fields)}"
    if annotation == dict[str, str]:
        return "a mapping from text to text"
    return f"{_NAMES[get_origin(annotation) or annotation]} {limits}".rstrip()


def _limits(metadata: list[Any]) -> Iterator[str]:
    for item in metadata:
        # Annotated[int, Field(ge=1)] carries its limits one level deeper than a field's own metadata.
        if isinstance(item, FieldInfo):
            yield from _limits(item.metadata)
        elif isinstance(item, annotated_types.Gt):
            yield f"> {item.gt}"
        elif isinstance(item, annotated_types.Ge):
            yield f">= {item.ge}"
        elif isinstance(item, annotated_types.Lt):
            yield f"< {item.lt}"
        elif isinstance(item, annotated_types.Le):
            yield f"<= {item.le}"
        elif isinstance(item, annotated_types.MinLen):
            yield "that is not empty"


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _choices(annotation: Any) -> tuple[Any, ...]:
    return tuple(
        choice for member in _members(annotation) if get_origin(member) is Literal for choice in get_args(member)
    )
