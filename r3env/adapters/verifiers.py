"""Environments of the package verifiers by `r3env.adapters.verifiers:Verifiers-v0`.

A query is a row of the environment's data set. The environment runs its rollout itself, and asks the policy over the
endpoint of its episode, as any agent does. It is one that `verifiers.load_environment` loads: verifiers 0.3 has these,
0.4 has not.
"""

import asyncio
import functools
import json
import threading
from collections.abc import Mapping
from typing import Any

import gymnasium

from r3env.core import Queries, Query, QueryList
from r3env.data.shared import load_shared
from r3env.envs.agent import AgentEnv
from r3env.registry import OptionError

_INSTALL = "pip install 'verifiers>=0.3.1,<0.4'"
# A rollout waits for the engine, which may decode a whole batch first.
_TIMEOUT_S = 24 * 3600.0

_loading = threading.RLock()


class VerifiersEnv(AgentEnv):
    """Rollouts of one of verifiers' environments, which pays its rubric's reward.

    The environment is loaded once in a process, and runs its rollouts side by side.
    """

    def __init__(
        self, name: str = "", *, data: str = "train", options: Mapping[str, Any] | None = None, **arguments: Any
    ) -> None:
        """Make the environment, and load the other one.

        Args:
            name: Of the environment, as `verifiers.load_environment` takes it: an installed package or module.
            data: `train` for its training rows, `heldout` for those of its evaluation.
            options: Further arguments of its `load_environment`.
            arguments: Of `r3env.envs.agent.AgentEnv`.

        Raises:
            ImportError: verifiers is not installed, or a version without such environments.
            ValueError: An unknown `data`.
            OptionError: The environment cannot be loaded.
        """
        super().__init__(**arguments)
        if data not in ("train", "heldout"):
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        self.data, self._key = data, (name, json.dumps(dict(options or {}), sort_keys=True))
        _load(*self._key)

    def load_queries(self) -> Queries:
        """Return the rows of the environment's data set, by their numbers."""
        return load_shared(("verifiers", *self._key, self.data), lambda: QueryList(_queries(self._rows())))

    def run_agent(self, query: Query, base_url: str, model: str) -> float:
        """Run a rollout and return its reward.

        Raises:
            RuntimeError: The rollout ended with an error.
        """
        # waits: env_runners.step_timeout_s is over the thread
        return asyncio.run(_rollout(_load(*self._key), self._rows()[int(query.uid)], base_url, model))

    def _rows(self) -> Any:
        environment = _load(*self._key)
        with _loading:
            return environment.get_dataset() if self.data == "train" else environment.get_eval_dataset()


def _load(name: str, options: str) -> Any:
    with _loading:
        return _loaded(name, options)


@functools.lru_cache
def _loaded(name: str, options: str) -> Any:
    try:
        from verifiers import load_environment
        from verifiers.clients import OpenAIChatCompletionsClient  # noqa: F401  for its error
    except (ImportError, AttributeError) as error:
        raise ImportError(f"verifiers cannot be used ({error}): {_INSTALL}") from error
    if not name:
        raise OptionError("name", "names no environment; fix: environment.options.name=my_environment")
    try:
        return load_environment(name, **json.loads(options))
    except Exception as error:  # the environment is somebody else's: loading it can raise anything
        raise OptionError("name", f"{name!r} cannot be loaded: {type(error).__name__}: {error}") from error


def _queries(rows: Any) -> list[Query]:
    queries = []
    for number, row in enumerate(rows):
        prompt = row["prompt"]
        text = prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)
        queries.append(Query(str(number), text, str(row.get("answer") or "")))
    return queries


async def _rollout(environment: Any, row: Mapping[str, Any], base_url: str, model: str) -> float:
    import openai
    from verifiers.clients import OpenAIChatCompletionsClient

    connection = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=_TIMEOUT_S)
    async with connection:
        client = OpenAIChatCompletionsClient(connection)
        output = await environment.run_rollout(dict(row), client, model, dict(environment.sampling_args))
    if output.get("error"):
        raise RuntimeError(output["error"]["error_chain_repr"])
    return float(output["reward"])


gymnasium.register("Verifiers-v0", VerifiersEnv)
