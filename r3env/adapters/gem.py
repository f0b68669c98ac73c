"""Environments of the package gem-llm (GEM, "a gym for agentic LLMs") by `r3env.adapters.gem:Gem-v0`.

A query is a seed: every episode of a group starts from the same state. For the games with word lists (Wordle,
Hangman, …) GEM downloads NLTK's `words`, for those with data sets (math, code, questions) a set from the Hub.
"""

import contextlib
import logging
import random
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np

from r3env.adapters.foreign import Reply, SeededEnv, seed_of
from r3env.core import Queries, Query, QueryList
from r3env.data.shared import load_shared

_global_random = threading.RLock()


class GemEnv(SeededEnv):
    """Episodes of one of GEM's environments.

    GEM draws from Python's and numpy's global generators, so its environments take turns within a process.
    """

    def __init__(
        self,
        name: str = "game:GuessTheNumber-v0-easy",
        *,
        data: str = "train",
        size: int = 256,
        options: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Make the environment and GEM's.

        Args:
            name: GEM's id of the environment.
            data: `train` or `heldout`, which share no seed.
            size: Queries, that is, seeds.
            options: Further arguments of `gem.make`.
            arguments: Of `ForeignEnv`; GEM decides on the number of turns.

        Raises:
            ImportError: gem-llm is not installed.
            ValueError: An unknown name or `data`, or a `size` that is not positive.
        """
        super().__init__(name, prefix=name, data=data, size=size, **arguments)
        self.name, self.options = name, dict(options or {})
        gem = _import_gem()
        with _seeded(0):
            self._gem = gem.make(name, **self.options)
        self._random: Any = None

    def load_queries(self) -> Queries:
        """Make one query per seed, whose text is GEM's first observation; made once for all environments."""
        key = ("gem", self.name, self.data, self.size, repr(sorted(self.options.items())))
        return load_shared(key, lambda: QueryList(self._make_queries()))

    def begin(self, query: Query) -> None:
        """Reset GEM's environment to the query's seed."""
        with _seeded(seed := seed_of(query)):
            self._gem.reset(seed=seed)
            self._random = _state()

    def reply(self, response: str) -> Reply:
        """Step GEM's environment; a hint on how to answer, its `suffix`, follows the observation."""
        with _restored(self._random):
            observation, reward, terminated, truncated, info = self._gem.step(response)
            self._random = _state()
        return Reply(_text(observation, info), float(reward), bool(terminated or truncated), info.get("correct"))

    def close(self) -> None:
        """Close GEM's environment."""
        if hasattr(self._gem, "close"):
            self._gem.close()

    def observe(self, seed: int) -> str:
        """Return GEM's first observation, with its `suffix`: in some games that is the board."""
        with _seeded(seed):
            return _text(*self._gem.reset(seed=seed))


def _text(observation: str, info: Mapping[str, Any]) -> str:
    return "\n".join(str(part).strip() for part in (observation, info.get("suffix")) if part)


def _import_gem() -> ModuleType:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        import gem
    except ImportError as error:
        raise ImportError(f"gem-llm cannot be imported ({error}): pip install -e '.[gem]'") from error
    # Importing it sets up the root logger: everything would be logged from INFO on.
    root.setLevel(level)
    root.handlers[:] = handlers
    return gem


def _state() -> Any:
    return random.getstate(), np.random.get_state()


@contextlib.contextmanager
def _restored(state: Any) -> Iterator[None]:
    """The global generators in a state of their own, and afterwards as they were."""
    with _global_random:
        before = _state()
        random.setstate(state[0])
        np.random.set_state(state[1])
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _seeded(seed: int) -> contextlib.AbstractContextManager[None]:
    return _restored((random.Random(seed).getstate(), np.random.RandomState(seed).get_state()))


gymnasium.register("Gem-v0", GemEnv)
