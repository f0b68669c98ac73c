"""Making an environment by its id, with errors of one line."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from r3env.core import VerifiableEnv
from r3env.spelling import nearest

_WRAPPER = " was raised from the environment creator"


def made(env_id: str, arguments: Mapping[str, Any]) -> VerifiableEnv:
    """The environment without Gymnasium's wrappers.

    Args:
        env_id: As Gymnasium registers it; `module:Id-v0` imports the module first.
        arguments: Of the constructor.

    Raises:
        ValueError: There is no such environment, it is no `VerifiableEnv`, or it refuses its arguments.
    """
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **arguments).unwrapped
    except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        text = str(error).partition(_WRAPPER)[0]
        unknown = re.search(r"unexpected keyword argument '(\w+)'", text)
        if unknown and unknown[1] in arguments:
            text = f"unknown option {unknown[1]!r}; the nearest is {nearest(unknown[1], parameters_of(env_id))}"
        raise ValueError(text) from error
    if not isinstance(env, VerifiableEnv):
        raise ValueError(f"is not a r3env.core.VerifiableEnv but a {type(env).__name__}")
    return env


def parameters_of(env_id: str) -> list[str]:
    """What the constructors take, those of the base classes included: a subclass may hand on what it does not know."""
    entry_point = gymnasium.spec(env_id.rpartition(":")[2]).entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    constructors = [vars(base)["__init__"] for base in getattr(creator, "__mro__", ()) if "__init__" in vars(base)]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = dict.fromkeys(
        parameter.name
        for constructor in constructors
        if inspect.isfunction(constructor)
        for parameter in inspect.signature(constructor).parameters.values()
        if parameter.kind in named and parameter.name != "self"
    )
    return list(found)
