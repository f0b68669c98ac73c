"""Reward functions by name: imported in the child processes of `r3env/Function-v0`, with errors of one line."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from r3env.named_functions import FunctionLoadError, describe, load_function


@dataclass(frozen=True)
class Parameters:
    """The arguments of a reward function.

    Args:
        required: Names without a default.
        optional: Names with one.
        everything: Whether it takes any other name too (`**kwargs`).
        trl: Whether it is called as TRL calls: a list of everything, here of one element.
        messages: Whether its completions are lists of messages, as their annotation has it.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    everything: bool
    trl: bool
    messages: bool


@dataclass(frozen=True)
class RewardFunction:
    """A reward function by the name that the user gave it."""

    name: str
    function: Callable[..., Any]
    parameters: Parameters


def labels(names: Sequence[str]) -> tuple[str, ...]:
    """Return short names of reward functions, for metrics: the function's own, or its module's as well.

    Args:
        names: each `module:function` or `/path/to/file.py:function`.
    """
    pairs = [name.rpartition(":")[::2] for name in names]
    short = [function for _, function in pairs]
    modules = [Path(place).stem if place.endswith(".py") else place for place, _ in pairs]
    longer = [one if short.count(one) == 1 else f"{module}.{one}" for one, module in zip(short, modules, strict=True)]
    return tuple(one if longer.count(one) == 1 else f"{one}_{number}" for number, one in enumerate(longer, start=1))


@lru_cache
def load(name: str) -> RewardFunction:
    """Import a reward function, or a class whose instances are one.

    Args:
        name: `module:function` or `/path/to/file.py:function`.

    Raises:
        FunctionLoadError: It cannot be used.
    """
    function = load_function(name, classes=True)
    return RewardFunction(name, function, _parameters(name, function))


@lru_cache
def make(name: str) -> RewardFunction:
    """Import a reward function; make the instance of a class, which may load a model or open connections.

    Raises:
        FunctionLoadError: It cannot be used, or its class cannot be made without arguments.
    """
    found = load(name)
    if not isinstance(found.function, type):
        return found
    try:
        return replace(found, function=found.function())
    except (Exception, SystemExit) as error:
        raise FunctionLoadError(f"{name}: making it fails: {describe(error)}") from None


def _parameters(name: str, function: Callable[..., Any]) -> Parameters:
    # A class is not made to be described: that may take long.
    called = partial(function.__call__, None) if isinstance(function, type) else function
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):
        raise FunctionLoadError(f"{name}: has no readable signature; fix: wrap it in a function") from None
    kinds = inspect.Parameter
    if any(one.kind is kinds.POSITIONAL_ONLY for one in parameters.values()):
        raise FunctionLoadError(f"{name}: takes arguments by position only; fix: leave out the `/`")
    named = [one for one in parameters.values() if one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    everything = any(one.kind is kinds.VAR_KEYWORD for one in parameters.values())
    trl = "completions" in parameters
    if not trl and "response" not in parameters and not everything:
        raise FunctionLoadError(
            f"{name}: takes neither `response` nor TRL's `completions`; fix: give an argument one of these names"
        )
    return Parameters(
        required=tuple(one.name for one in named if one.default is kinds.empty),
        optional=tuple(one.name for one in named if one.default is not kinds.empty),
        everything=everything,
        trl=trl,
        messages=trl and "dict" in str(parameters["completions"].annotation).lower(),
    )
