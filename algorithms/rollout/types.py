"""What the driver asks of an env runner and what comes back: plain frozen data, numpy only."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from algorithms.utils.errors import RunError


class Context(StrEnum):
    """What a response was conditioned on."""

    PLAIN = "plain"
    REFLECTION = "reflection"


class Split(StrEnum):
    """Which of a runner's two environments an episode plays in."""

    TRAIN = "train"
    EVALUATION = "evaluation"


@dataclass(frozen=True)
class Attempt:
    """A stored failure that a reflection prompt quotes, token for token.

    Args:
        prompt_tokens: int32 [P], the first turn's prompt as the policy saw it.
        response_tokens: int32 [L], what the policy wrote, possibly with its middle cut out.
        text: the response as text, for the environment and for people.
    """

    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    text: str


@dataclass(frozen=True)
class Sampling:
    """How an engine draws tokens."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int = 64


@dataclass(frozen=True)
class Request:
    """One episode to play.

    Args:
        id: unique within a dispatch; rollouts come back sorted by it.
        uid: the query, by the environment's own id.
        group: index of the prompt group that the episode belongs to.
        seed: seeds the episode's sampling, whatever runner plays it.
        attempt: set for a reflection episode.
    """

    id: int
    uid: str
    group: int
    seed: int
    sampling: Sampling
    split: Split = Split.TRAIN
    attempt: Attempt | None = None


@dataclass(frozen=True)
class Rollout:
    """A played episode.

    Args:
        tokens: int32 [T], prompt and all turns.
        loss_mask: bool [T], True on tokens that the policy wrote in this episode.
        sampling_logprobs: float32 [T], the engine's log-prob of each policy token at the sampling temperature, else 0.
        reward: what the environment paid, before shaping.
        correct: verified, and finished within the length limit.
        truncated: the last response hit the length limit.
        verdict: the grader's reason, or "environment_error".
        messages: the conversation as text, for people.
        turn_correct: correctness after each turn of the policy.
        error: set when the environment failed or grading timed out: the rollout leaves its group.
    """

    request_id: int
    uid: str
    group: int
    context: Context
    tokens: np.ndarray
    loss_mask: np.ndarray
    sampling_logprobs: np.ndarray
    reward: float
    correct: bool
    truncated: bool
    verdict: str
    weights_version: int
    messages: tuple[dict[str, str], ...] = ()
    error: str | None = None
    turn_correct: tuple[bool, ...] = ()

    @property
    def response_length(self) -> int:
        """Policy tokens over all turns."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def response_tokens(self) -> np.ndarray:
        """int32 [L], the policy's tokens over all turns."""
        return self.tokens[self.loss_mask]

    @property
    def prompt_length(self) -> int:
        """Tokens before the policy's first one."""
        return int(self.loss_mask.argmax()) if self.loss_mask.any() else len(self.tokens)


@dataclass(frozen=True)
class RunnerReport:
    """What an env runner did in one `advance`.

    Args:
        rollouts: the episodes that ended, in the order in which they did.
        unfinished: episodes that the runner still holds.
        generated_tokens: tokens of the responses that ended.
        engine_seconds: time spent in the engine.
    """

    rollouts: tuple[Rollout, ...]
    unfinished: int
    generated_tokens: int
    engine_seconds: float


class EveryEpisodeFailed(RunError):
    """The environment failed in every episode of a step: nothing can be learned from going on."""


def refuse_if_all_failed(rollouts: "Sequence[Rollout]") -> None:
    """Raise if the environment failed in every one of some rollouts.

    Raises:
        EveryEpisodeFailed: with what the first says.
    """
    if rollouts and all(rollout.verdict == "environment_error" for rollout in rollouts):
        raise EveryEpisodeFailed(
            f"environment.id: every one of {len(rollouts)} episodes failed; the first: {rollouts[0].error}"
        )
