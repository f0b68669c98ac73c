"""The ids of this package's environments, and environments made by id, with errors of one line."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from r3env.core import VerifiableEnv
from r3env.env_files import is_path, load_env_class
from r3env.spelling import nearest

MATH_ID = "r3env/Math-v0"
REASONING_GYM_ID = "r3env/ReasoningGym-v0"
MIXTURE_ID = "r3env/Mixture-v0"
FUNCTION_ID = "r3env/Function-v0"
CHOICE_ID = "r3env/Choice-v0"
TOOLS_ID = "r3env/Tools-v0"
AGENT_ID = "r3env/Agent-v0"
CONSTRAINTS_ID = "r3env/Constraints-v0"

_WRAPPER = " was raised from the environment creator"

# The entry points are strings, so that an environment's module is imported only when one is made. The check keeps a
# reloaded module from Gymnasium's "overriding environment" warning.
for _id, _entry_point in (
    (MATH_ID, "r3env.envs.math:MathEnv"),
    (REASONING_GYM_ID, "r3env.envs.reasoning_gym:ReasoningGymEnv"),
    (MIXTURE_ID, "r3env.envs.mixture:MixtureEnv"),
    (FUNCTION_ID, "r3env.envs.function:FunctionEnv"),
    (CHOICE_ID, "r3env.envs.choice:ChoiceEnv"),
    (TOOLS_ID, "r3env.envs.tools:ToolEnv"),
    (AGENT_ID, "r3env.envs.agent:AgentEnv"),
    (CONSTRAINTS_ID, "r3env.envs.constraints:ConstraintsEnv"),
):
    if _id not in gymnasium.registry:
        gymnasium.register(id=_id, entry_point=_entry_point)


class OptionError(ValueError):
    """A constructor argument that cannot be used; the message begins with its name."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(f"{option}: {' '.join(text.split())}")
        self.option, self.text = option, text


class UnreachableError(OptionError):
    """A server that an argument names does not answer: the argument is wrong, or the server is down for now."""


def to_make(env_id: str) -> str | EnvSpec:
    """Return what `gymnasium.make` takes: the id, or of `path:Class` the specification of the class.

    Raises:
        ValueError: There is no such class; one line without the id.
    """
    if not is_path(env_id):
        return env_id
    creator: Any = load_env_class(env_id)
    return EnvSpec(env_id.rpartition(":")[2], entry_point=creator)


def make_env(env_id: str, arguments: Mapping[str, Any]) -> VerifiableEnv:
    """Make the environment, without Gymnasium's wrappers.

    Args:
        env_id: As Gymnasium registers it; `module:Id-v0` imports the module first, `path:Class` names a class's file
            or folder.
        arguments: Of the constructor.

    Raises:
        ValueError: There is no such environment, it is no `VerifiableEnv`, or it refuses its arguments.
    """
    try:
        env = gymnasium.make(to_make(env_id), disable_env_checker=True, **arguments).unwrapped
    except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        text = str(error).partition(_WRAPPER)[0]
        unknown = re.search(r"unexpected keyword argument '(\w+)'", text)
        if unknown and unknown[1] in arguments:
            known = constructor_parameters(env_id)
            text = f"unknown option {unknown[1]!r}; the nearest is {nearest(unknown[1], known)}"
        raise ValueError(text) from error
    if not isinstance(env, VerifiableEnv):
        raise ValueError(f"is not a r3env.core.VerifiableEnv but a {type(env).__name__}")
    return env


def constructor_parameters(env_id: str) -> list[str]:
    """List the constructors' arguments, base classes included: a subclass may pass on what it does not know."""
    source = to_make(env_id)
    entry_point = (source if isinstance(source, EnvSpec) else gymnasium.spec(env_id.rpartition(":")[2])).entry_point
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
