"""One episode in progress: its tokens, its conversation and what its environment has said so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import gymnasium
import numpy as np

from algorithms.rollout.engines.base import Completion, FinishReason
from algorithms.rollout.types import Context, Request, Rollout


@dataclass
class Episode:
    """Turned into a `Rollout` when it ends.

    Args:
        request: what is played.
        environment: plays it, and no other episode meanwhile.
        place: episodes are submitted to the engine in this order.
        weights_version: of the weights that the first response was sampled with; None before it was asked for.
    """

    request: Request
    environment: gymnasium.Env[str, str]
    place: int
    weights_version: int | None = None
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    turn_correct: list[bool] = field(default_factory=list)
    reward: float = 0.0
    correct: bool = False
    truncated: bool = False
    verdict: str = "no_answer"
    error: str | None = None
    done: bool = False

    def append_context(self, tokens: Sequence[int]) -> None:
        """Add tokens that the policy did not write."""
        self.tokens += tokens
        self.mask += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)

    def append_response(self, completion: Completion) -> None:
        """Add the policy's turn."""
        self.tokens += completion.tokens.tolist()
        self.mask += [True] * len(completion.tokens)
        self.logprobs += completion.logprobs.tolist()
        self.truncated = completion.finish_reason is FinishReason.LENGTH

    def fail(self, verdict: str, error: str) -> None:
        """End the episode without an outcome."""
        self.done, self.correct, self.verdict, self.error = True, False, verdict, error

    def given_up(self, error: str) -> Self:
        """A copy that has failed, whatever a thread that is still at the original does to it."""
        length = min(len(self.tokens), len(self.mask), len(self.logprobs))
        parts = {name: getattr(self, name)[:length] for name in ("tokens", "mask", "logprobs")}
        copy = replace(self, **parts, messages=list(self.messages), turn_correct=list(self.turn_correct))
        copy.fail("environment_error", error)
        return copy

    def rollout(self, current_version: int) -> Rollout:
        """The episode as plain data; one that failed before its first response has the current weights' version."""
        request = self.request
        return Rollout(
            request_id=request.id,
            uid=request.uid,
            group=request.group,
            context=Context.REFLECTION if request.attempt else Context.PLAIN,
            tokens=np.array(self.tokens, np.int32),
            loss_mask=np.array(self.mask, bool),
            engine_logprobs=np.array(self.logprobs, np.float32),
            reward=self.reward,
            correct=self.correct,
            truncated=self.truncated,
            verdict=self.verdict,
            weights_version=current_version if self.weights_version is None else self.weights_version,
            messages=tuple(self.messages),
            error=self.error,
            turn_correct=tuple(self.turn_correct),
        )
