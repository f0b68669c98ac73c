"""One episode in progress: its tokens, its conversation and what its environment has returned so far."""

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import gymnasium
import numpy as np
from transformers import PreTrainedTokenizerBase

from algorithms.rollout.engines.base import Completion, FinishReason, GenerationRequest
from algorithms.rollout.turn_tokens import TurnTokens
from algorithms.rollout.types import NEW_CONTEXT, Prompt, Request, Rollout, Split, Turn, Written
from r3env import chat
from r3env.reasoning import response_text


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
        state: of the observation that the next turn answers, by the environment's name for it.
        asking: it has ended, and a token behind its response is being measured.
        asked_logprob: what that gave.
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
    state: str = ""
    reward: float = 0.0
    correct: bool = False
    truncated: bool = False
    verdict: str = "no_answer"
    error: str | None = None
    done: bool = False
    asking: bool = False
    asked_logprob: float | None = None

    def append_context(self, tokens: Sequence[int]) -> None:
        """Add tokens that the policy did not write."""
        self.tokens += tokens
        self.mask += [False] * len(tokens)

    def new_context(self, tokens: Sequence[int]) -> None:
        """Have the next response follow these tokens and nothing else."""
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
        self.truncated = completion.finish_reason is FinishReason.LENGTH

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
        )

    def _carried(self, place: int) -> dict[str, str] | Written:
        """A turn as the rollout has it: what is trained on is carried as tokens, and not as text beside them."""
        own = self.written.get(place) if self.request.split is Split.TRAIN else None
        return self.messages[place] if own is None else own


# Verdicts that do not judge the answer: their rollouts leave the group.
UNTRUSTED_VERDICTS = frozenset({"timeout", "error"})


class Turns:
    """Takes episodes from turn to turn; what an environment does wrong is its episode's error, never an exception.

    Nor is it the end of the process: a verifier may run what a policy writes, and that may call `exit()`. All this is
    called in threads of its own, which no interrupt reaches.

    Args:
        tokenizer: of the policy, with its chat template.
        context_length: tokens that a conversation may have; None: no bound.
        chat_format: of the conversations.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        context_length: int | None,
        chat_format: chat.ChatFormat = chat.DEFAULT_FORMAT,
    ) -> None:
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.chat_format = chat_format
        self._tokens = TurnTokens(tokenizer, chat_format)

    def begin(self, episode: Episode) -> None:
        """Reset the environment and write the first prompt."""
        try:
            self.open(episode)
        except BaseException as error:  # a user's environment may raise or return anything; it is this episode's data
            episode.fail("environment_error", f"reset: {error!r}")

    def open(self, episode: Episode) -> None:
        """Do what `begin` does, and raise whatever goes wrong."""
        request, environment = episode.request, episode.environment
        takes_hint = bool(request.prompt.hint and getattr(environment.unwrapped, "takes_hint", False))
        text, info = environment.reset(seed=request.seed % 2**31, options=_options(request.prompt, takes_hint))
        if request.prompt.attempt is not None:
            text = request.prompt.feedback or text
        if request.prompt.hint and not takes_hint:
            text = f"{text}\n\n{request.prompt.hint}"
        messages = [*info.get("conversation", ()), {"role": "user", "content": text}]
        episode.messages = [dict(message) for message in chat.with_system(messages, self.chat_format.system)]
        episode.state = _text(info, "state")
        episode.tools = json.dumps(info["tools"], ensure_ascii=False) if info.get("tools") else ""
        self._append_context(episode, self._first_prompt(request.prompt, episode))

    def generation_request(self, episode: Episode) -> GenerationRequest:
        """Make the request for the episode's next response."""
        context = np.array(episode.tokens[episode.context_start :], np.int32)
        if episode.asking:
            return GenerationRequest(context, 0, episode.request.sampling, episode.request.sampling.asked_token)
        turn = len(episode.turns)
        seed = np.random.SeedSequence([episode.request.seed, turn]).generate_state(1, np.uint64)[0]
        sampling = episode.request.sampling
        begun = 0 if turn else len(_begun(episode.request.prompt))  # counts as a part of the response
        room = min(self._room(episode), max(1, sampling.max_response_tokens - begun))
        if room < sampling.max_response_tokens:
            sampling = replace(sampling, max_response_tokens=room)
        return GenerationRequest(context, int(seed), sampling)

    def may_ask(self, episode: Episode) -> bool:
        """Return whether a token behind the response is to be measured: the policy has ended it, and there is room."""
        finished = episode.error is None and not episode.truncated and bool(episode.mask) and episode.mask[-1]
        return episode.request.sampling.asked_token is not None and finished and self._room(episode) > 1

    def step(self, episode: Episode, completion: Completion) -> None:
        """Step the environment with a response; unless that ends the episode, write the next prompt."""
        start = len(episode.tokens)
        begun = [] if episode.turns else _begun(episode.request.prompt)
        episode.append_response(completion)
        text = response_text(self.tokenizer, [*begun, *completion.tokens.tolist()])
        episode.messages.append({"role": "assistant", "content": text})
        if not begun:  # else the text has more than what the policy wrote
            episode.written[len(episode.messages) - 1] = Written(start, len(episode.tokens))
        try:
            observation, reward, terminated, truncated, info = episode.environment.step(text)
            reward = float(reward)
            if not math.isfinite(reward):
                raise ValueError(f"reward {reward} is not a finite number")
            episode.counts.update(info.get("counts") or {})
            if not _judge(episode, start, reward, info):
                return
            episode.done = episode.done or terminated or truncated
            if not episode.done:
                following = info.get("messages") or [{"role": "user", "content": observation}]
                episode.messages += [dict(message) for message in following]
                self._ask_again(episode, completion, following)
            feedback = _text(info, "feedback") or ("" if episode.done else observation)
            episode.turns[-1] = replace(episode.turns[-1], feedback=feedback)
            episode.state = _text(info, "state")
        except BaseException as error:  # see begin
            episode.fail("environment_error", f"step: {error!r}")

    def _ask_again(self, episode: Episode, completion: Completion, following: Sequence[Mapping[str, str]]) -> None:
        """Write the next turns and their prompt: behind what is there, or all of it anew."""
        if not self.chat_format.rerender:
            self._append_context(episode, self._tokens.following(completion.tokens, following, episode.tools))
            return
        tokens = self._tokens.first(episode.messages, episode.tools)
        self._check_room(len(tokens))
        episode.new_context(tokens)

    def _append_context(self, episode: Episode, tokens: Sequence[int]) -> None:
        self._check_room(len(episode.tokens) - episode.context_start + len(tokens))
        episode.append_context(tokens)

    def _check_room(self, length: int) -> None:
        if self.context_length and self.context_length <= length:
            raise ValueError(f"{length} tokens leave no room in the model's {self.context_length}")

    def _room(self, episode: Episode) -> int:
        """Tokens that the model's context has left."""
        return (self.context_length or sys.maxsize) - len(episode.tokens) + episode.context_start

    def _first_prompt(self, prompt: Prompt, episode: Episode) -> Sequence[int]:
        messages = episode.messages
        if prompt.attempt is None or self.chat_format.rerender:
            if prompt.attempt is not None and all(message["role"] != "assistant" for message in messages):
                raise ValueError("the environment's info has no `conversation` with the attempt to render anew")
            before = self._tokens.first(messages, episode.tools)
        else:
            tokens, response = prompt.attempt.prompt_tokens, prompt.attempt.response_tokens
            following = self._tokens.following(response, messages[-1:], episode.tools)
            before = (*tokens.tolist(), *response.tolist(), *following)
        return (*before, *_begun(prompt))


def _options(prompt: Prompt, takes_hint: bool) -> dict[str, Any]:
    """Options of an environment's `reset`."""
    options: dict[str, Any] = {"uid": prompt.uid}
    if prompt.attempt is not None:
        options["failed_attempt"] = prompt.attempt.text
    if prompt.variant:
        options["variant"] = prompt.variant
    if prompt.hint and takes_hint:
        options["hint"] = prompt.hint
    return options


def _begun(prompt: Prompt) -> list[int]:
    """Tokens that the first assistant turn begins with."""
    return [] if prompt.begun is None else prompt.begun.tolist()


def _text(info: Mapping[str, Any], key: str) -> str:
    value = info.get(key)
    return "" if value is None else str(value)


def _judge(episode: Episode, start: int, reward: float, info: Mapping[str, Any]) -> bool:
    """Take in the environment's judgment of the turn that begins at `start`; returns whether it can be trusted."""
    correct = bool(info.get("correct", reward > 0))
    episode.verdict = str(info.get("verdict", "equal" if correct else "different"))
    if episode.verdict in UNTRUSTED_VERDICTS:
        why = _text(info, "feedback")
        episode.fail(episode.verdict, f"the answer could not be graded: {episode.verdict}{why and f': {why}'}")
        return False
    if episode.truncated and correct:
        # A box in an unfinished response does not count.
        correct, reward, episode.verdict, episode.done = False, 0.0, "truncated", True
    episode.reward += reward
    episode.correct = correct
    episode.turns.append(Turn(start, len(episode.tokens), reward, correct, state=episode.state))
    return True
