"""The child's side of tools that are Python functions: describe them, and call one.

All of it runs in processes that `r3env.child_processes.subprocess_scorer` kills at a deadline. Nothing here is for
others.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from r3env.named_functions import FunctionLoadError, load_function, resolved
from r3env.tools.results import Schema, as_text, shorten

_load = lru_cache(load_function)


def make_description(names: tuple[str, ...]) -> Callable[[], dict[str, Any]]:
    """Import the functions; return what gives their schemas, or why the first bad one is bad."""
    try:
        said: dict[str, Any] = {"schemas": [schema_of(name, _load(name)) for name in names]}
    except FunctionLoadError as error:
        said = {"error": str(error)}
    return lambda: said


def schema_of(name: str, function: Callable[..., Any]) -> Schema:
    """Return a function's schema for chat templates: from its docstring and its type hints.

    Raises:
        FunctionLoadError: it does not say what it does, or what it takes.
    """
    from transformers.utils import get_json_schema  # slow to import, and only needed once

    kinds = inspect.Parameter
    try:
        parameters = inspect.signature(function).parameters.values()
        if any(one.kind not in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY) for one in parameters):
            raise FunctionLoadError(f"{name}: takes arguments without a name; fix: name each, and leave out the `/`")
        schema: Schema = get_json_schema(function)
    except FunctionLoadError:
        raise
    except Exception as error:  # the library has several kinds of its own, and a hint may be anything
        reason = " ".join(str(error).split())
        fix = "write a docstring that says what it does and, under `Args:`, each argument, with a type hint for each"
        raise FunctionLoadError(f"{name}: does not describe its arguments: {reason}; fix: {fix}") from None
    return schema


def make_caller(name: str) -> Callable[[Mapping[str, Any], int], dict[str, Any]]:
    """Import a function; return what calls it, see `call`."""
    return partial(call, _load(name))


def call(function: Callable[..., Any], arguments: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Call a function.

    Args:
        function: may be a coroutine function.
        arguments: by name.
        most: Longest text, in characters.

    Returns:
        `text`, of a longer one the beginning, and whether the function `failed`.
    """
    try:
        return {"text": shorten(as_text(resolved(function(**arguments))), most), "failed": False}
    except (Exception, SystemExit) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
        return {"text": shorten(text, most), "failed": True}
