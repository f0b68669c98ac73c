"""The base of the adapters: another library's environment decides when an episode ends and what it pays."""

import abc
from dataclasses import dataclass
from typing import Any

from gymnasium.error import ResetNeeded

from r3env.core import Query, Reason, Verdict, VerifiableEnv, reaches

FIRST_SEEDS = {"train": 0, "heldout": 1_000_000}


@dataclass(frozen=True)
class Reply:
    """The other environment's answer to a response.

    Args:
        observation: the next user turn; not read after the last one.
        reward: for this response.
        done: whether the episode is over.
        correct: what the other environment itself says about that; None if it says nothing.
    """

    observation: str
    reward: float
    done: bool
    correct: bool | None = None


class ForeignEnv(VerifiableEnv):
    """Episodes of another library's environment about queries of ours.

    Rewards are passed on as they are, negative ones too. An episode is correct if the other environment says so
    or, where it says nothing, if its rewards add up to `correct_at`.

    Args:
        correct_at: sum of rewards from which an episode counts as solved.
        arguments: of `VerifiableEnv`.
    """

    has_own_end = True

    def __init__(self, *, correct_at: float = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.correct_at = correct_at
        self._running = False
        self._paid = 0.0

    @abc.abstractmethod
    def begin(self, query: Query) -> None:
        """Start the other environment's episode of a query."""

    @abc.abstractmethod
    def reply(self, response: str) -> Reply:
        """Take the other environment one step further."""

    def verify(self, query: Query, response: str) -> Verdict:
        """Judge a response as the first of a new episode, which takes the place of the running one."""
        self._start(query)
        return self._take(response)[1]

    def feedback(self, query: Query, response: str, verdict: Verdict) -> str:
        """Return the user turn after a stored failure: the first user turn again, as the episode begins again."""
        return f"{self.reflection_guidance}\n\n{self.prompt(query)}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode, as `VerifiableEnv.reset` does."""
        observation, info = super().reset(seed=seed, options=options)
        self._start(self._current or self.query(info["uid"]))
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pass a response on; return and raise what `VerifiableEnv.step` does."""
        if self._current is None or not self._running:
            raise ResetNeeded("no episode is running: call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"a response must be text, it is of type {type(action).__name__}")
        reply, verdict = self._take(action)
        observation = "" if reply.done else reply.observation
        return observation, reply.reward, reply.done, False, self._step_info(self._current, verdict)

    def _start(self, query: Query) -> None:
        self.begin(query)
        self._running, self._paid = True, 0.0

    def _take(self, response: str) -> tuple[Reply, Verdict]:
        reply = self.reply(response)
        self._running = not reply.done
        self._paid += reply.reward
        solved = reaches(self._paid, self.correct_at) if reply.correct is None else reply.correct
        correct = reply.done and solved
        return reply, Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT, reply.reward)


class SeededEnv(ForeignEnv):
    """Episodes of an environment that a seed begins: a query is a seed, and its text the first observation.

    Args:
        source: what the environment is called in an error.
        prefix: of the uids, before the seed.
        data: `train` or `heldout`, which share no seed.
        size: queries, that is, seeds.
        arguments: of `ForeignEnv`.

    Raises:
        ValueError: an unknown `data`, or a `size` that is not positive.
    """

    def __init__(self, source: str, *, prefix: str, data: str, size: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        if data not in FIRST_SEEDS:
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        if size < 1:
            raise ValueError(f"size must be positive, at least 1, it is {size}")
        self.source, self.prefix, self.data, self.size = source, prefix, data, size

    @abc.abstractmethod
    def observe(self, seed: int) -> str:
        """Return the first observation of an episode that the seed begins."""

    def _make_queries(self) -> list[Query]:
        """Observe how each seed begins.

        Raises:
            ValueError: the same seed begins in another way each time.
        """
        first = FIRST_SEEDS[self.data]
        texts = [self.observe(seed) for seed in range(first, first + self.size)]
        if self.observe(first) != texts[0]:
            raise ValueError(f"{self.source} starts differently each time, whatever the seed: no group can share it")
        return [Query(f"{self.prefix}/{seed}", text, "") for seed, text in enumerate(texts, first)]


def seed_of(query: Query) -> int:
    """Return the seed that a query of `SeededEnv` is."""
    return int(query.uid.rpartition("/")[2])
