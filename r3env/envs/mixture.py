"""`r3env/Mixture-v0`: several environments in one run, each with its share."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from r3env.agents.types import Completion
from r3env.core import Queries, Query, Verdict, VerifiableEnv
from r3env.data.shared import load_shared
from r3env.registry import OptionError, make_env
from r3env.spelling import nearest

_PART_KEYS = ("id", "weight", "options")
# Something that works on any machine, and shows what parts may differ in.
_DEFAULT_PARTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "one_turn": {"id": "r3env/Math-v0"},
        "two_turns": {"id": "r3env/Math-v0", "options": {"max_turns": 2}},
    }
)
_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def _naming(part: str) -> Iterator[None]:
    """Name the part in an error about one of its constructor's arguments."""
    try:
        yield
    except OptionError as error:
        raise type(error)(f"environments.{part}.options.{error.option}", error.text) from error


class MixtureQueries(Queries):
    """Queries of several environments, with `NAME/` before their uids."""

    def __init__(self, parts: Mapping[str, Queries], chosen: Mapping[str, Sequence[int]]) -> None:
        """Join the parts.

        Args:
            parts: The queries of each environment, by its name.
            chosen: For each, which of its queries belong to one pass, by their place in its order. The others can be
                looked up, but are not listed.
        """
        self._parts, self._chosen = dict(parts), dict(chosen)

    def uid_at(self, index: int) -> str:
        """Return the uid of the query at this place of the order."""
        for name, chosen in self._chosen.items():
            if index < len(chosen):
                return f"{name}/{self._parts[name].uid_at(int(chosen[index]))}"
            index -= len(chosen)
        raise IndexError(index)

    def __len__(self) -> int:
        return sum(len(chosen) for chosen in self._chosen.values())

    def __getitem__(self, uid: str) -> Query:
        name, _, inner = uid.partition("/")
        return replace(self._parts[name][inner], uid=uid)


class MixtureEnv(VerifiableEnv):
    """Episodes of several environments; each episode runs in the environment that its query comes from."""

    def __init__(
        self,
        environments: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        seed: int = 0,
        **common: Any,
    ) -> None:
        """Make the parts.

        Args:
            environments: By a name of yours: `id` (`module:Id-v0` imports the module first), `options` for the
                constructor, and `weight`, the part's share of the queries. Without any weight all queries of all
                parts are listed. With weights (1 where a part has none) as many are listed as these shares allow
                without repeating one; the log says how many stay out. None for two embedded ones.
            seed: Which queries stay out.
            common: Constructor arguments for every part; its own `options` go before them.

        Raises:
            ValueError: A part is not described like this, or not a `VerifiableEnv`.
        """
        if environments is not None and not isinstance(environments, Mapping):
            kind = type(environments).__name__
            raise ValueError(f"environments must map names of yours to `id`, `weight` and `options`, it is a {kind}")
        described = dict(_DEFAULT_PARTS if environments is None else environments)
        if not described:
            raise ValueError("environments: name at least one")
        for name, part in described.items():
            _check(name, part)
        self.seed = seed
        self.weights = {name: part.get("weight") for name, part in described.items()}
        self.parts = {name: _make_env(name, part, common) for name, part in described.items()}
        some = next(iter(self.parts.values()))
        super().__init__(
            instruction=some.instruction,
            reflection_guidance=max((part.reflection_guidance for part in self.parts.values()), key=len),
            max_turns=max(part.max_turns for part in self.parts.values()),
        )
        self.tools = max((part.tools for part in self.parts.values()), key=lambda tools: len(str(tools)))
        self.has_own_end = any(part.has_own_end for part in self.parts.values())
        self.takes_hint = any(part.takes_hint for part in self.parts.values())
        self.takes_completions = any(part.takes_completions for part in self.parts.values())
        self.max_episodes = min(filter(None, (part.max_episodes for part in self.parts.values())), default=None)
        self._running: tuple[str, VerifiableEnv] | None = None

    def load_queries(self) -> Queries:
        """Return the queries of all parts, as their weights have it."""
        parts = {}
        for name, part in self.parts.items():
            with _naming(name):
                parts[name] = part.queries
        # Parts that share their queries give the same mixture, which holds them: their identities stay theirs.
        key = ("mixture", self.seed, tuple((name, id(parts[name]), self.weights[name]) for name in parts))
        return load_shared(key, lambda: MixtureQueries(parts, self._choose(parts)))

    def check_concurrency(self, episodes: int) -> None:
        """Check it of each part, which may have all episodes of a moment."""
        for name, part in self.parts.items():
            with _naming(name):
                part.check_concurrency(episodes)

    def verify(self, query: Query, response: str) -> Verdict:
        """Judge as the part that the query comes from does."""
        part, inner = self._inner(query)
        return part.verify(inner, response)

    def prompt(self, query: Query) -> str:
        """Return the first user turn of the part that the query comes from; that of the first one if it is of none."""
        if query.uid.partition("/")[0] not in self.parts:
            return next(iter(self.parts.values())).prompt(query)
        part, inner = self._inner(query)
        return part.prompt(inner)

    def reference_response(self, query: Query) -> str:
        """Return a reference response as the part of the query makes it."""
        part, inner = self._inner(query)
        return part.reference_response(inner)

    def answer_form(self, query: Query) -> str:
        """Return what the part of the query looks for."""
        part, inner = self._inner(query)
        return part.answer_form(inner)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode of the part that the query comes from; see `VerifiableEnv.reset`."""
        options = dict(options or {})
        if (uid := options.pop("uid", None)) is not None:
            self.query(uid)  # for its error
        gymnasium.Env.reset(self, seed=seed)
        name, _, inner = (self._sample().uid if uid is None else uid).partition("/")
        part_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        hint = "" if self.parts[name].takes_hint else options.pop("hint", "")
        if not self.parts[name].takes_completions:
            options.pop("policy", None)
        self._running = name, self.parts[name]
        observation, info = self.parts[name].reset(seed=part_seed, options={**options, "uid": inner})
        observation = f"{observation}\n\n{hint}" if hint else observation
        return observation, {**info, "uid": f"{name}/{inner}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge a response by its part; see `VerifiableEnv.step`."""
        return self._step("step", action)

    def complete(self, completion: Completion) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the request of the agent that a part runs; see `r3env.envs.agent.AgentEnv`."""
        return self._step("complete", completion)

    def abandon(self) -> None:
        """Let go of what the part's episode holds."""
        if self._running is not None:
            self._running[1].abandon()

    def close(self) -> None:
        """Close the parts."""
        for part in self.parts.values():
            part.close()

    def _step(self, method: str, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._running is None:
            raise ResetNeeded("no episode is running: call reset() before step()")
        name, part = self._running
        observation, reward, terminated, truncated, info = getattr(part, method)(action)
        if "uid" in info:
            info = {**info, "uid": f"{name}/{info['uid']}"}
        if info.get("rewards"):  # parts may have functions of the same name
            info = {**info, "rewards": {f"{name}/{each}": reward for each, reward in info["rewards"].items()}}
        return observation, reward, terminated, truncated, info

    def _inner(self, query: Query) -> tuple[VerifiableEnv, Query]:
        name, _, uid = query.uid.partition("/")
        return self.parts[name], self.parts[name].query(uid)

    def _choose(self, parts: Mapping[str, Queries]) -> dict[str, Sequence[int]]:
        sizes = {name: len(queries) for name, queries in parts.items()}
        if all(weight is None for weight in self.weights.values()):
            return {name: range(size) for name, size in sizes.items()}
        weights = {name: 1.0 if weight is None else weight for name, weight in self.weights.items()}
        # Queries for each unit of weight: the part that is smallest for its weight is the one used up.
        unit = min(size / weights[name] for name, size in sizes.items())
        chosen: dict[str, Sequence[int]] = {}
        for number, (name, size) in enumerate(sizes.items()):
            # The rounding makes up for 3 * (1 / 3) < 1.
            count = min(size, max(1, int(round(unit * weights[name], 6))))
            order = np.random.default_rng([self.seed, number]).permutation(size)
            chosen[name] = np.sort(order[:count]).tolist() if count < size else range(size)
            _logger.info("mixture: %s: %d of %d queries", name, count, size)
        return chosen


def _check(name: str, part: Mapping[str, Any]) -> None:
    if not isinstance(name, str) or not name or "/" in name:
        raise ValueError(f"environments: the name {name!r} must not be empty or hold a slash")
    if not isinstance(part, Mapping) or "id" not in part:
        raise ValueError(f"environments.{name}: must be a mapping with `id`, and `weight` and `options` if wanted")
    for key in part:
        if key not in _PART_KEYS:
            raise ValueError(f"environments.{name}: unknown key {key!r}; the nearest is {nearest(key, _PART_KEYS)}")
    if not isinstance(part["id"], str):
        raise ValueError(f"environments.{name}.id must be text, it is {part['id']!r}")
    if not isinstance(part.get("options") or {}, Mapping):
        raise ValueError(f"environments.{name}.options must be a mapping, it is {part['options']!r}")
    weight = part.get("weight")
    if weight is not None and not (isinstance(weight, int | float) and 0 < weight < float("inf")):
        raise ValueError(f"environments.{name}.weight must be a positive number, it is {weight!r}")


def _make_env(name: str, part: Mapping[str, Any], common: Mapping[str, Any]) -> VerifiableEnv:
    arguments = {**common, **(part.get("options") or {})}
    try:
        return make_env(part["id"], arguments)
    except ValueError as error:
        raise ValueError(f"environments.{name}: {part['id']} cannot be made: {error}") from error
