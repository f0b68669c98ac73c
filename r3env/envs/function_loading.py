"""Reward functions by their names: imported in the child processes of `r3env/Function-v0`, with errors of one line."""

import importlib
import importlib.util
import inspect
import sys
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from r3env.spelling import nearest

_LONGEST_ERROR = 400
_START_FIX = "start from the folder that holds it, or put that folder on PYTHONPATH"


class RewardLoadError(Exception):
    """A reward function that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Parameters:
    """What a reward function takes.

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


@lru_cache
def load(names: tuple[str, ...]) -> tuple[RewardFunction, ...]:
    """Import reward functions by their names.

    Args:
        names: Each `module:function` or `/path/to/file.py:function`.

    Raises:
        RewardLoadError: One cannot be used.
    """
    return tuple(_load(name) for name in names)


def _load(name: str) -> RewardFunction:
    place, _, attributes = name.rpartition(":")
    module = _module(name, place)
    try:
        function = reduce(getattr, attributes.split("."), module)
    except AttributeError:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise RewardLoadError(
            f"{name}: {place} has no {attributes}; the nearest is {nearest(attributes, known)}"
        ) from None
    if not callable(function) or isinstance(function, type):
        kind = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
        raise RewardLoadError(f"{name}: is {kind}, not a function; fix: name a function, or a callable object")
    return RewardFunction(name, function, _parameters(name, function))


def _module(name: str, place: str) -> ModuleType:
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise RewardLoadError(f"{name}: there is no such file; fix: start from the folder that it is named from")
    try:
        return _from_file(Path(place)) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and f"{place}.".startswith(f"{error.name}."):
            raise RewardLoadError(f"{name}: there is no module {error.name}; fix: {_START_FIX}") from None
        raise RewardLoadError(f"{name}: importing it fails: {describe(error)}") from None
    except (Exception, SystemExit) as error:
        raise RewardLoadError(f"{name}: importing it fails: {describe(error)}") from None


def _from_file(path: Path) -> ModuleType:
    """Import a file as a script finds its neighbors: its folder comes first."""
    sys.path.insert(0, str(path.parent))
    name = f"reward_{zlib.crc32(bytes(path))}_{path.stem}"  # a file may be called like any module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _parameters(name: str, function: Callable[..., Any]) -> Parameters:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise RewardLoadError(f"{name}: does not say what it takes; fix: wrap it in a function") from None
    kinds = inspect.Parameter
    if any(one.kind is kinds.POSITIONAL_ONLY for one in parameters.values()):
        raise RewardLoadError(f"{name}: takes arguments by position only; fix: leave out the `/`")
    named = [one for one in parameters.values() if one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    everything = any(one.kind is kinds.VAR_KEYWORD for one in parameters.values())
    trl = "completions" in parameters
    if not trl and "response" not in parameters and not everything:
        raise RewardLoadError(f"{name}: takes neither `response` nor TRL's `completions`; fix: name an argument so")
    return Parameters(
        required=tuple(one.name for one in named if one.default is kinds.empty),
        optional=tuple(one.name for one in named if one.default is not kinds.empty),
        everything=everything,
        trl=trl,
        messages=trl and "dict" in str(parameters["completions"].annotation),
    )


def describe(error: BaseException) -> str:
    """Say in one line what was raised, and where in the user's code."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR].rstrip(": ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text


def _is_ours(file: str) -> bool:
    folder = Path(file).parent
    return folder == Path(__file__).parent or file.startswith("<frozen") or folder.name == "importlib"
