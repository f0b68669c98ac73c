"""Environments of the package skyrl-gym by `r3env.adapters.skyrl_gym:SkyRLGym-v0`.

A query is a problem with its ground truth, from any data that `r3env/Math-v0` takes; SkyRL's environment scores
the responses.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import gymnasium

from r3env.adapters.foreign import ForeignEnv, Reply
from r3env.core import Queries, Query
from r3env.envs.math import MathEnv

FORMAT_OF_GSM8K = "End with the final answer in the format: #### ANSWER"


class SkyRLGymEnv(ForeignEnv):
    """Episodes of one of SkyRL's text environments (`BaseTextEnv`)."""

    def __init__(
        self,
        name: str = "gsm8k",
        *,
        data: str | None = None,
        columns: Mapping[str, str] | None = None,
        instruction: str = FORMAT_OF_GSM8K,
        options: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Make the environment; the problems are loaded when first needed.

        Args:
            name: SkyRL's id of the environment.
            data: A file, Hub id or embedded problems as in `r3env/Math-v0`; None for the embedded training problems.
            columns: Names of the data's columns, see `r3env.data.loading.load_queries`.
            instruction: Text that follows the problem; empty for none.
            options: Further arguments of `skyrl_gym.make`, such as `env_config`.
            extras: What SkyRL's environment gets for every problem beside its ground truth, such as `max_turns`.
            arguments: Of `ForeignEnv`; SkyRL's environment decides on the number of turns.

        Raises:
            ImportError: skyrl-gym is not installed.
            ValueError: An unknown name.
        """
        super().__init__(instruction=instruction, **arguments)
        self._library = _import_skyrl_gym()
        if name not in self._library.envs.registration.registry:
            known = ", ".join(sorted(self._library.envs.registration.registry))
            raise ValueError(f"skyrl-gym has no environment {name!r}; it has {known}")
        self.name, self.data = name, data
        self.columns, self.options, self.extras = dict(columns or {}), dict(options or {}), dict(extras or {})
        self._episode: Any = None

    def load_queries(self) -> Queries:
        """Return the problems of `data`, as `r3env/Math-v0` loads and shares them."""
        return MathEnv(self.data, columns=self.columns).load_queries()

    def begin(self, query: Query) -> None:
        """Make SkyRL's environment of the query.

        Raises:
            ValueError: The environment changes the prompt, which a group has in common.
        """
        truth = {"method": "rule", "ground_truth": query.answer}
        extras = {"reward_spec": truth, "reward_model": truth, "extra_info": {}, **self.extras}
        self._end()
        self._episode = self._library.make(self.name, extras=extras, **self.options)
        prompt = [dict(turn) for turn in query.conversation(self.prompt(query))]
        opening, _ = self._episode.init(prompt)
        if opening != prompt:
            raise ValueError(f"{self.name} changes the prompt, which this adapter cannot pass on")

    def reply(self, response: str) -> Reply:
        """Step SkyRL's environment; the messages that it answers with become one user turn."""
        output = self._episode.step(response)
        text = "\n".join(str(message["content"]) for message in output["observations"])
        return Reply(text, float(output["reward"]), bool(output["done"]))

    def close(self) -> None:
        """Close SkyRL's environment."""
        self._end()

    def _end(self) -> None:
        if self._episode is not None:
            self._episode.close()
            self._episode = None


def _import_skyrl_gym() -> ModuleType:
    try:
        import skyrl_gym
        import skyrl_gym.envs
    except ImportError as error:
        raise ImportError(f"skyrl-gym cannot be imported ({error}): pip install -e '.[skyrl-gym]'") from error
    return skyrl_gym


gymnasium.register("SkyRLGym-v0", SkyRLGymEnv)
