"""Reward functions in Ray actors, where a connection pool or a loaded model stays: `env_runners.reward_actor`.

The driver starts the actors and ends them; env runners find them by name, also after a restart. Ray restarts an actor
that died, and repeats the calls that it had. An episode waits for its reward in a thread, as for any environment, while
the engine generates the others.
"""

import asyncio
import faulthandler
import itertools
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from algorithms.config.base import BaseConfig
from algorithms.config.errors import ConfigError
from algorithms.config.machine import RewardActorSettings
from algorithms.rollout.environment_actors import EnvironmentActor
from algorithms.utils.errors import RunError
from r3env.child_processes.process import ProcessDiedError
from r3env.envs.function import Judge, MadeFrom, judge_in_fork
from r3env.envs.reward_service import RewardService

# A process whose loop stands still for so long beyond a call's time limit ends; while a function is made, for longer.
_GRACE_S, _MAKING_S = 5.0, 120.0
_ALIVE_EVERY_S = 1.0


class RewardActorsDidNotStart(RunError):
    """Ray did not start the reward actors in time."""


class RewardActor:
    """Serves reward functions until it is killed; it ends itself where it cannot answer, and Ray replaces it."""

    def __init__(self, settings: RewardActorSettings) -> None:
        self._service = RewardService(
            concurrency=settings.concurrency,
            retries=settings.retries,
            rate=settings.rate and settings.rate / settings.replicas,
            on_stuck=self._leave,
        )
        self._limits_s: list[float] = []  # of the calls in progress
        self._guard: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Answer once the actor has started."""

    async def judge(self, *arguments: Any) -> dict[str, Any]:
        """Judge a response, see `RewardService.judge`."""
        self._guard = self._guard or asyncio.create_task(self._stay_alive())
        self._limits_s.append(arguments[-1])
        self._end_if_still()
        try:
            return await self._service.judge(*arguments)
        finally:
            self._limits_s.remove(arguments[-1])

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(_ALIVE_EVERY_S)
            self._end_if_still()

    def _end_if_still(self) -> None:
        """Have a thread of C end the process if this is not called again in time: a call may hold Python's lock."""
        if not self._limits_s:
            faulthandler.cancel_dump_traceback_later()
            return
        limit_s = _MAKING_S if self._service.loading else max(self._limits_s) + _GRACE_S
        faulthandler.dump_traceback_later(limit_s, exit=True)

    def _leave(self) -> None:
        """End the process, whose threads cannot be ended, when the present answers are out."""
        threading.Timer(_ALIVE_EVERY_S, os._exit, (1,)).start()


def reward_bundles(settings: RewardActorSettings) -> list[dict[str, float]]:
    """Return what each reward actor reserves; nothing where they reserve nothing."""
    reserved = {"CPU": settings.num_cpus, "GPU": settings.num_gpus, **settings.resources}
    each = {name: amount for name, amount in reserved.items() if amount}
    return [each] * settings.replicas if each else []


def bundles_of_trial(settings: RewardActorSettings) -> Sequence[int]:
    """Return the bundle of each reward actor: in a trial the last ones, if they are for it; -1 for any."""
    bundles = reward_bundles(settings)
    group = ray.util.get_current_placement_group() if bundles else None
    if group is None or group.bundle_specs[-len(bundles) :] != bundles:  # a group of the user's own has others
        return [-1] * settings.replicas
    return range(group.bundle_count - settings.replicas, group.bundle_count)


class RewardActors:
    """The reward actors of a configuration, which names them to the env runners; none if it asks for none.

    Raises:
        RewardActorsDidNotStart: they were not there within `env_runners.timeout_s`.
    """

    def __init__(self, config: BaseConfig) -> None:
        settings, limit_s = config.env_runners_settings.reward_actor, config.env_runners_settings.timeout_s
        self._config = config
        names = tuple(f"reward-{secrets.token_hex(8)}" for _ in range(settings.replicas))
        apart = settings.environments
        kind: Any = ray.remote(EnvironmentActor if apart else RewardActor)
        given = config.env if apart else settings
        # A step cannot be repeated.
        own = {"max_concurrency": settings.concurrency} if apart else {"max_task_retries": settings.retries}
        options: Any = {
            "num_cpus": settings.num_cpus,
            "num_gpus": settings.num_gpus,
            "resources": settings.resources or None,
            "max_restarts": -1,
            **own,
        }
        self._actors: list[Any] = []
        bundles = bundles_of_trial(settings)
        try:
            self._actors += [
                kind.options(name=name, placement_group_bundle_index=bundle, **options).remote(given)
                for name, bundle in zip(names, bundles, strict=True)
            ]
            if self._actors:  # else there may be no Ray, which `ray.get` would start
                ray.get([actor.ready.remote() for actor in self._actors], timeout=limit_s)
        except ValueError as error:
            why = " ".join(str(error).split())
            fix = "fix: whole numbers, or fractions below 1, of what nodes are started with"
            raise ConfigError(f"env_runners.reward_actor: {why}; {fix}") from error
        except (GetTimeoutError, RayActorError) as error:
            self.close()
            further = "".join(f" and {amount:g} {name}" for name, amount in settings.resources.items())
            raise RewardActorsDidNotStart(
                f"env_runners.reward_actor: {settings.replicas} actors with {settings.num_cpus:g} CPUs and "
                f"{settings.num_gpus:g} GPUs{further} each did not start within {limit_s:g} s (env_runners.timeout_s); "
                "fix: fewer of them, or less for each"
            ) from error
        config.measured.reward_actors = names

    def close(self) -> None:
        """Kill the actors, and take their names back: the configuration may be used again."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        self._config.measured.reward_actors = ()


def judge_of(names: Sequence[str]) -> Judge:
    """Return what judges in these actors in turn, or in forks where there are none."""
    return _InActors(names) if names else judge_in_fork


class _InActors:
    """Sends responses to reward actors in turn, from any thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self._next = itertools.cycle([ray.get_actor(name) for name in names])

    def __call__(
        self, made_from: MadeFrom, row: Mapping[str, Any], prompt: str, turns: Sequence[Any], timeout_s: float
    ) -> Mapping[str, Any]:
        """Judge a response, see `judge_in_fork`."""
        reply: Any = next(self._next).judge.remote(made_from, row, prompt, turns, timeout_s)
        try:
            # waits: the actor has a limit, and so has env_runners.step_timeout_s
            found: Mapping[str, Any] = ray.get(reply)
        except RayActorError as error:
            raise ProcessDiedError("the reward actor died") from error
        return found
