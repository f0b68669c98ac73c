"""Whole environments in actors apart from the env runners: `env_runners.reward_actor.environments`.

They reserve resources of their own, such as those of machines without a GPU. An env runner has a stand-in for each,
whose calls wait in threads, as every environment's do.
"""

import contextlib
import functools
import itertools
import math
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium
import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayTaskError

from algorithms.config.base import BaseConfig
from algorithms.config.registered import find_registered
from algorithms.rollout.types import Split
from r3env.named_functions import describe
from r3env.registry import to_make

T = TypeVar("T")

# A call that can be repeated waits for an actor that died to be started again: a process and its imports.
_RESTART_S, _RETRY_S = 300.0, 1.0


def environment_arguments(config: BaseConfig) -> dict[Split, dict[str, Any]]:
    """Return the constructor arguments of the training and of the held-out environment."""
    return {
        Split.TRAIN: dict(config.env_config),
        Split.EVALUATION: config.evaluation_settings.held_out(config.env_config),
    }


class EnvironmentFailed(Exception):
    """An error of an environment in an actor, in one line: its class may be known there alone."""


def _described(method: Callable[..., T]) -> Callable[..., T]:
    """Have a method raise `EnvironmentFailed` for whatever it raises: `SystemExit` would end the actor."""

    @functools.wraps(method)
    def call(*arguments: Any) -> T:
        try:
            return method(*arguments)
        except EnvironmentFailed:
            raise
        except BaseException as error:
            raise EnvironmentFailed(describe(error)) from None

    return call


class EnvironmentActor:
    """Holds environments by the keys of their stand-ins; its methods run in threads."""

    def __init__(self, env_id: str) -> None:
        self._id = env_id
        self._environments: dict[str, Any] = {}
        find_registered(env_id)

    def ready(self) -> None:
        """Answer once the actor has started."""

    @_described
    def make(self, key: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Make an environment; return what an env runner reads of it."""
        environment = self._environments[key] = gymnasium.make(to_make(self._id), disable_env_checker=True, **arguments)
        names = ("observation_space", "action_space", "takes_hint", "max_episodes")
        return {name: getattr(environment.unwrapped, name, None) for name in names}

    @_described
    def queries(self, key: str) -> Any:
        """Return an environment's queries."""
        return self._environments[key].unwrapped.queries

    @_described
    def reset(self, key: str, arguments: Mapping[str, Any], seed: int | None, options: dict[str, Any] | None) -> Any:
        """Begin an episode, in a new environment if the actor was started again."""
        if key not in self._environments:
            self.make(key, arguments)
        return self._environments[key].reset(seed=seed, options=options)

    @_described
    def call(self, key: str, method: str, *values: Any) -> Any:
        """Call a method of an environment itself; raises EnvironmentFailed if the actor was started again."""
        if key not in self._environments:
            raise EnvironmentFailed("the actor of the environment was started again within the episode")
        return getattr(self._environments[key].unwrapped, method)(*values)

    def close(self, key: str) -> None:
        """Close an environment."""
        if environment := self._environments.pop(key, None):
            environment.close()


class StandIn(gymnasium.Env[str, str]):
    """Stands in an env runner for an environment in an actor.

    Args:
        actor: an `EnvironmentActor`.
        arguments: of the environment's constructor.
        limit_s: how long a call may take.
    """

    def __init__(self, actor: Any, arguments: Mapping[str, Any], limit_s: float) -> None:
        self._actor, self._arguments, self._key = actor, dict(arguments), uuid.uuid4().hex
        self._limit_s = limit_s
        self._abandoned: Any = None
        vars(self).update(self._repeated("make"))

    @functools.cached_property
    def queries(self) -> Any:
        """The environment's queries."""
        return self._wait(self._actor.queries.remote(self._key))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode, once the last one is let go of."""
        if self._abandoned is not None:
            ray.wait([self._abandoned], timeout=self._limit_s)  # the actor's threads keep no order
        begun: tuple[str, dict[str, Any]] = self._repeated("reset", seed, options)
        return begun

    def step(self, action: str) -> Any:
        """Answer a turn."""
        return self._wait(self._actor.call.remote(self._key, "step", action))

    def abandon(self) -> None:
        """Have the environment let go of the episode; waits for nothing."""
        self._abandoned = self._actor.call.remote(self._key, "abandon")

    def close(self) -> None:
        """Have the environment closed; waits for nothing."""
        self._actor.close.remote(self._key)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # of a process that ends
            if ray.is_initialized():
                self.close()

    def _repeated(self, method: str, *values: Any) -> Any:
        deadline = math.inf
        while True:
            try:
                return self._wait(getattr(self._actor, method).remote(self._key, self._arguments, *values))
            except ActorUnavailableError:
                deadline = min(deadline, time.monotonic() + min(_RESTART_S, self._limit_s))
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_S)

    def _wait(self, reply: Any) -> Any:
        try:
            return ray.get(reply, timeout=self._limit_s)
        except GetTimeoutError:
            self.close()  # nobody asks for it again
            self._key = uuid.uuid4().hex  # the next episode gets another environment
            limit = f"{self._limit_s:g} s (env_runners.step_timeout_s)"
            raise EnvironmentFailed(f"the environment did not return within {limit}") from None
        except RayTaskError as error:
            raise error.cause from None  # the environment's own


def stand_ins(config: BaseConfig) -> dict[Split, Callable[[], gymnasium.Env[str, str]]]:
    """Return how an env runner makes its environments in the actors, in turn."""
    actors = itertools.cycle([ray.get_actor(name) for name in config.measured.reward_actors])
    limit_s = config.env_runners_settings.step_timeout_s
    return {
        split: lambda arguments=arguments: StandIn(next(actors), arguments, limit_s)  # type: ignore[misc]
        for split, arguments in environment_arguments(config).items()
    }
