"""An episode in progress: what has been written, and its results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import gymnasium
import numpy as np

from algorithms.rollout.agent_turns import token_limit
from algorithms.rollout.chunks import Chunks
from algorithms.rollout.engines.base import Completion, FinishReason
from algorithms.rollout.summaries import Summaries
from algorithms.rollout.types import CUT_OFF, NEW_CONTEXT, Request, Rollout, Split, Turn, Written
from r3env.agents.types import NextTurn


@dataclass
class Episode:
    """Turned into a `Rollout` when it ends.

    Args:
        request: what is run.
        environment: runs it, and no other episode meanwhile.
        place: episodes are submitted to the engine in this order.
        versions: of the weights that sampled the policy's tokens, as in `Rollout`.
        tokens: as in `Rollout`, prompt and turns so far.
        context_start: the next response follows `tokens[context_start:]`.
        mask: True on the policy's own tokens.
        logprobs: of the policy's own tokens only.
        written: the policy's own turns by their place in `messages`.
        tools: what the policy may call, as JSON; empty: none.
        counts: what the environment has counted so far.
        rewards: as in `Rollout`.
        calls: as in `Rollout`.
        spans: of each of the policy's turns, where its context starts in `tokens`, and where the turn ends.
        agent_request: the request of an agent that the next turn answers; None in any other environment.
        state: of the observation that the next turn answers, by the environment's name for it.
        pending: it has ended, and a token behind its response is being measured.
        chunks: of the response in progress, those that are written.
        summaries: of the turns so far.
        asked_logprob: what that gave.
        answer: as in `Rollout`.
        observed: RLlib's episode of it, see `ObservedTurns`; None: nobody looks.
    """

    request: Request
    environment: gymnasium.Env[str, str]
    place: int
    versions: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    context_start: int = 0
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    written: dict[int, Written] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    tools: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    rewards: Counter[str] = field(default_factory=Counter)
    calls: list[tuple[str, str]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    agent_request: NextTurn | None = None
    state: str = ""
    reward: float = 0.0
    correct: bool = False
    truncated: bool = False
    verdict: str = "no_answer"
    error: str | None = None
    done: bool = False
    pending: bool = False
    chunks: Chunks = field(default_factory=Chunks)
    summaries: Summaries = field(default_factory=Summaries)
    asked_logprob: float | None = None
    answer: str | None = None
    observed: Any = None

    def append_context(self, tokens: Sequence[int]) -> None:
        """Add tokens that the policy did not write."""
        self.tokens += tokens
        self.mask += [False] * len(tokens)

    def new_context(self, tokens: Sequence[int]) -> None:
        """Make the next response follow these tokens only."""
        self.append_context([NEW_CONTEXT, *tokens])
        self.context_start = len(self.tokens) - len(tokens)

    def append_response(self, completion: Completion) -> None:
        """Add the policy's turn. The mask grows last: `given_up` may look in between."""
        for version, count in completion.versions:
            last = self.versions.pop() if self.versions and self.versions[-1][0] == version else (version, 0)
            self.versions.append((version, last[1] + count))
        self.tokens += completion.tokens.tolist()
        self.logprobs += completion.logprobs.tolist()
        self.mask += [True] * len(completion.tokens)
        self.spans.append((self.context_start, len(self.tokens)))
        at_length = completion.finish_reason is FinishReason.LENGTH
        self.truncated = at_length and len(completion.tokens) < token_limit(self.agent_request)

    def cut_off(self) -> None:
        """End the episode as truncated: no context has room for its next turn."""
        self.done = self.truncated = True
        self.correct, self.verdict = False, CUT_OFF

    def fail(self, verdict: str, error: str) -> None:
        """End the episode without an outcome."""
        self.done, self.correct, self.verdict, self.error = True, False, verdict, error

    def given_up(self, error: str) -> Self:
        """Copy the episode as failed, whatever a thread that still runs the original does to it."""
        turns, mask = list(self.turns), list(self.mask)
        tokens, logprobs = self.tokens[: len(mask)], self.logprobs[: sum(mask)]
        copy = replace(
            self,
            versions=list(self.versions),
            tokens=tokens,
            mask=mask,
            logprobs=logprobs,
            messages=list(self.messages),
            turns=turns,
            counts=Counter(self.counts),
            rewards=Counter(self.rewards),
            calls=list(self.calls),
        )
        copy.fail("environment_error", error)
        return copy

    def rollout(self, current_version: int) -> Rollout:
        """Return the episode as plain data; one that failed before its first response gets the current version."""
        request = self.request
        return Rollout(
            request_id=request.id,
            uid=request.uid,
            group=request.group,
            context=request.context,
            tokens=np.array(self.tokens, np.int32),
            loss_mask=np.array(self.mask, bool),
            sampling_logprobs=np.array(self.logprobs, np.float32),
            reward=self.reward,
            correct=self.correct,
            truncated=self.truncated,
            verdict=self.verdict,
            weights_version=min((version for version, _ in self.versions), default=current_version),
            versions=tuple(self.versions) if len(self.versions) > 1 else (),
            messages=tuple(self._carried(place) for place in range(len(self.messages))),
            error=self.error,
            turns=tuple(self.turns),
            asked_logprob=self.asked_logprob,
            counts=dict(self.counts),
            rewards=dict(self.rewards),
            calls=tuple(self.calls),
            answer=self.answer,
        )

    def _carried(self, place: int) -> dict[str, str] | Written:
        """A turn as the rollout has it: what is trained on is carried as tokens, and not as text beside them."""
        own = self.written.get(place) if self.request.split is Split.TRAIN else None
        return self.messages[place] if own is None else own
