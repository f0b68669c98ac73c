"""Environments of the package verifiers by `r3env.adapters.verifiers:Verifiers-v0`.

A query is a task of the environment's taskset. The environment runs its episode itself: its harness asks the policy
over the endpoint of the episode, as any agent does. It is one of `verifiers.v1`, which verifiers 0.4 brought.
"""

import asyncio
import functools
import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import gymnasium

from r3env.core import Queries, Query, QueryList
from r3env.data.shared import load_shared
from r3env.envs.agent import AgentEnv
from r3env.registry import OptionError

_INSTALL = "pip install 'verifiers>=0.4,<0.5', in an environment without the extra mcp"

# Harnesses of verifiers: its default, and one that runs nothing.
_SHELL, _CHAT = "bash", "null"

_loading = threading.RLock()


class VerifiersEnv(AgentEnv):
    """Episodes of one of verifiers' environments, which pays the rewards of its task.

    The environment is loaded and served once in a process, and runs its episodes side by side.
    """

    def __init__(
        self,
        name: str = "",
        *,
        data: str | None = None,
        options: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Make the environment, and load the other one.

        Args:
            name: Of the taskset, as `env.taskset.id` of verifiers takes it: an installed package or module.
            data: Positions of the tasks as verifiers writes them, `0:900` or `900:`; None for all of them.
            options: Further settings of verifiers' `env` section, such as `taskset.split` or `agent.harness.id`.
            arguments: Of `r3env.envs.agent.AgentEnv`.

        Raises:
            ImportError: verifiers is not installed, or a version without `verifiers.v1`.
            OptionError: The environment cannot be loaded, has several agents, or would run what the policy writes on
                this machine.
        """
        super().__init__(**arguments)
        self._key = (name, json.dumps(dict(options or {}), sort_keys=True))
        self._work: Future[float] | None = None
        _load(*self._key)
        self._chosen = data

    def load_queries(self) -> Queries:
        """Return the tasks of the environment, by their positions.

        Raises:
            OptionError: `data` is no range, or the taskset has no end and `data` none either.
        """
        return load_shared(("verifiers", *self._key, self._chosen), lambda: QueryList(_queries(self._tasks())))

    def run_agent(self, query: Query, base_url: str, model: str) -> float:
        """Run an episode and return its reward.

        Raises:
            RuntimeError: The episode ended with an error.
        """
        if query != self.query(query.uid):
            raise OptionError(
                "name", "a task of verifiers has one wording; fix: leave out the method that writes others"
            )
        episode = _episode(_serve(*self._key), self._tasks()[query.uid], base_url, model)
        self._work = asyncio.run_coroutine_threadsafe(episode, _loop())
        return self._work.result()  # waits: env_runners.step_timeout_s is over the thread

    def abandon(self) -> None:
        """Also stop the episode, which may be computing instead of asking."""
        super().abandon()
        if self._work is not None:
            self._work.cancel()

    def _tasks(self) -> Mapping[str, Any]:
        with _loading:
            return _read_tasks(*self._key, self._chosen)


def _load(name: str, options: str) -> Any:
    with _loading:
        return _loaded(name, options)


@functools.lru_cache
def _loaded(name: str, options: str) -> Any:
    try:
        from verifiers import v1
    except ImportError as error:
        raise ImportError(f"verifiers cannot be used ({error}); fix: {_INSTALL}") from error
    if not name:
        raise OptionError("name", "names no environment; fix: environment.options.name=my_taskset")
    given = json.loads(options)
    try:
        config = v1.resolve_env_config({**given, "taskset": {**given.get("taskset", {}), "id": name}})
        (role, *others) = config.agent_harnesses()
        if not others:
            _keep_here(v1, getattr(config, role), config.agent_harnesses()[role].id, role)
            return v1.load_environment(config)
    except OptionError:
        raise
    except Exception as error:  # the environment is somebody else's: loading it can raise anything
        raise OptionError("name", f"{name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    agents = 1 + len(others)
    raise OptionError("name", f"{name!r} has {agents} agents, and an episode has one policy; fix: name another")


def _keep_here(v1: Any, agent: Any, harness: str, role: str) -> None:
    """Have an agent without a harness or a runtime chat from this machine.

    The library's own defaults are a shell for the policy, and a service.
    """
    if agent.harness is None and harness == _SHELL:
        harness, agent.harness = _CHAT, v1.HarnessConfig(id=_CHAT)
    if "runtime" in agent.model_fields_set:
        return
    if v1.load_harness(agent.harness or v1.HarnessConfig(id=harness)).EXECUTES_CODE:
        raise OptionError(
            "options",
            f"the harness {harness!r} runs what the policy writes; fix: environment.options.options.{role}.runtime."
            "type=docker, or subprocess for this machine, without a fence",
        )
    agent.runtime = v1.SubprocessConfig()


@functools.lru_cache
def _read_tasks(name: str, options: str, data: str | None) -> Mapping[str, Any]:
    taskset = _loaded(name, options).taskset
    try:
        chosen = taskset if data is None else taskset.include(idx=[data])
    except ValueError as error:
        raise OptionError("data", f"{data!r} is no range of tasks; fix: environment.data=0:900") from error
    if not chosen.bounded:
        raise OptionError("data", f"{name!r} has tasks without end; fix: environment.data=0:900")
    return {str(task.data.idx): task for task in chosen}


def _queries(tasks: Mapping[str, Any]) -> list[Query]:
    answers = ((uid, task.data.prompt_text, getattr(task.data, "answer", None)) for uid, task in tasks.items())
    return [Query(uid, text, str("" if answer is None else answer)) for uid, text, answer in answers]


@functools.lru_cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop of all episodes of this process: verifiers' locks and servers belong to one."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verifiers", daemon=True).start()
    return loop


def _serve(name: str, options: str) -> Any:
    with _loading:
        return _served(name, options)[0]


@functools.lru_cache
def _served(name: str, options: str) -> tuple[Any, Any]:
    """Start the servers of an environment, which end with the process."""
    environment = _loaded(name, options)
    serving = environment.serving()
    # waits: env_runners.step_timeout_s is over the thread
    asyncio.run_coroutine_threadsafe(serving.__aenter__(), _loop()).result()
    return environment, serving


async def _episode(environment: Any, task: Any, base_url: str, model: str) -> float:
    from verifiers import v1

    # No key of the user's goes to the endpoint.
    context = v1.ModelContext(model, v1.EvalClientConfig(base_url=base_url, api_key_var=""))
    episode = await environment.run_episode(task, context)
    if not episode.ok:
        errors = [error for part in (episode, *episode.traces) for error in part.errors]
        raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors) or "it says no reason")
    return float(sum(trace.reward for trace in episode.traces) / len(episode.traces))


gymnasium.register("Verifiers-v0", VerifiersEnv)
