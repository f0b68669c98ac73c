"""Environments that are given as classes, or registered with Ray as RLlib's users do, by a name for Gymnasium."""

import functools
import re
from collections.abc import Callable
from typing import Any

import gymnasium
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry, register_env

_creators: dict[str, Callable[[EnvContext], Any]] = {}


def environment_id(environment: Any) -> Any:
    """Return the id of an environment; a class is registered with Ray, so that every process finds it."""
    if not isinstance(environment, type):
        return environment
    name = re.sub(r"[^\w.]", "-", f"{environment.__module__}.{environment.__qualname__}")
    register_env(name, functools.partial(_construct, environment))
    return name


def _construct(kind: type, arguments: EnvContext) -> Any:
    return kind(**arguments)


def find_registered(env_id: str) -> None:
    """Have Gymnasium make an environment by the function that Ray knows under this name, if there is one."""
    if env_id in gymnasium.registry and env_id not in _creators:
        return
    if _global_registry.contains(ENV_CREATOR, env_id):
        _creators[env_id] = _global_registry.get(ENV_CREATOR, env_id)
    elif env_id in _creators:  # Ray has been started anew
        register_env(env_id, _creators[env_id])
    else:
        return
    create = _creators[env_id]
    gymnasium.registry.pop(env_id, None)  # another may have come under this name
    gymnasium.register(env_id, entry_point=lambda **arguments: create(EnvContext(arguments, worker_index=0)))
