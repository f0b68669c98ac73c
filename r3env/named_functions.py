"""Functions of the user by name, `module:function` or `path/to/file.py:function`, with errors of one line.

Importing may do anything: all but agents are imported in child processes alone.
"""

import asyncio
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import threading
import traceback
import zlib
from collections.abc import Awaitable, Callable, Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from r3env.spelling import nearest

_LONGEST_ERROR = 400
_START_FIX = "start from the folder that holds it, or put that folder on PYTHONPATH"
_PACKAGE = Path(__file__).parent
_LIBRARIES = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
# A file is imported once, whichever thread comes first.
_IMPORTING = threading.RLock()
# Files by the names that they are imported under.
_FILES: dict[str, str] = {}


def resolved(value: Any) -> Any:
    """Return what a function returned; of an `async` one, wait for it in a loop of its own."""
    # waits: the process is killed at a deadline
    return asyncio.run(awaited(value)) if inspect.isawaitable(value) else value


async def awaited(value: Awaitable[Any]) -> Any:
    """Return what can be awaited, as a coroutine."""
    return await value


class FunctionLoadError(Exception):
    """A function that cannot be used; the message is one line."""


def check_names(names: Any, example: str) -> tuple[str, ...]:
    """Return names of functions, those of files with their folders: a child may be in another folder.

    Args:
        names: one, or several; a function of a module stands for its name.
        example: what to write, for the error of an empty list.

    Raises:
        ValueError: there is none, or one has another form; the message names no setting.
    """
    listed = [names] if isinstance(names, str) else [] if names is None else names
    found = tuple(map(_name_of, listed if isinstance(listed, Sequence) else (listed,)))
    if not found:
        raise ValueError(f"names no function; fix: {example}")
    for name in found:
        place, colon, function = name.rpartition(":") if isinstance(name, str) else ("", "", "")
        if not (colon and place.strip() and all(part.isidentifier() for part in function.split("."))):
            raise ValueError(f"{name!r} is not of the form module:function or path/to/file.py:function")
    return tuple(_absolute(name) for name in found)


def _name_of(function: Any) -> Any:
    """Return the name of a function by which other processes import it; of others, and of a script's, itself."""
    if not inspect.isfunction(function) or function.__module__ == "__main__":
        return function
    return f"{_FILES.get(function.__module__, function.__module__)}:{function.__qualname__}"


def _absolute(name: str) -> str:
    place, _, function = name.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{function}" if place.endswith(".py") else name


def load_function(name: str, *, classes: bool = False) -> Callable[..., Any]:
    """Import a function by its name.

    Args:
        name: as `check_names` returns it.
        classes: whether a class with `__call__` will do.

    Raises:
        FunctionLoadError: it cannot be imported, or is no function.
    """
    function = load_named(name)
    is_class = isinstance(function, type)
    if not callable(function) or (is_class and not (classes and "__call__" in dir(function))):
        kind = "a class" if is_class else f"a {type(function).__name__}"
        raise FunctionLoadError(f"{name}: is {kind}, not a function; fix: name a function, or a callable object")
    loaded: Callable[..., Any] = function
    return loaded


def load_named(name: str) -> Any:
    """Import whatever a name as `check_names` returns it stands for; raises FunctionLoadError if there is none."""
    place, _, attributes = name.rpartition(":")
    module = _module(name, place)
    try:
        return reduce(getattr, attributes.split("."), module)
    except AttributeError:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise FunctionLoadError(
            f"{name}: {place} has no {attributes}; the nearest is {nearest(attributes, known)}"
        ) from None


def _module(name: str, place: str) -> ModuleType:
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise FunctionLoadError(f"{name}: there is no such file; fix: start from the folder that it is named from")
    try:
        return _from_file(Path(place)) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and f"{place}.".startswith(f"{error.name}."):
            raise FunctionLoadError(f"{name}: there is no module {error.name}; fix: {_START_FIX}") from None
        raise FunctionLoadError(f"{name}: importing it fails: {describe(error)}") from None
    except (Exception, SystemExit) as error:
        raise FunctionLoadError(f"{name}: importing it fails: {describe(error)}") from None


def _from_file(path: Path) -> ModuleType:
    """Import a file once, as a script finds its neighbors: its folder comes first."""
    name = f"function_{zlib.crc32(bytes(path))}_{path.stem}"  # a file may be called like any module
    with _IMPORTING:  # waits: as long as a user's file takes to import
        if name in sys.modules:
            return sys.modules[name]
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name], _FILES[name] = module, str(path)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def describe(error: BaseException) -> str:
    """Describe in one line what was raised, and where in the user's code."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR].rstrip(": ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    own = [frame for frame in frames if not of_library(frame.filename)] or frames
    return f"{text} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else text


def of_library(file: str) -> bool:
    """Return whether a file of a traceback is Python's own, or an installed package's."""
    return file.startswith("<") or any(folder in Path(file).parents for folder in _LIBRARIES)


def _is_ours(file: str) -> bool:
    folder = Path(file).parent
    return _PACKAGE in Path(file).parents or file.startswith("<frozen") or folder.name == "importlib"
