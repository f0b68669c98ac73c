"""Advance an episode from turn to turn: the tokens of prompts, and the environment's answer to responses."""

import functools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from algorithms.rollout.agent_turns import (
    CHANGED_PREFIXES,
    chat_completion,
    next_turn_of,
    policy_for,
    takes_completions,
    token_limit,
)
from algorithms.rollout.chunks import Chunks
from algorithms.rollout.engines.base import Completion, FinishReason, GenerationRequest
from algorithms.rollout.episode_record import Episode
from algorithms.rollout.failures import describe_error
from algorithms.rollout.types import Prompt, Turn, Written
from r3env import chat
from r3env.agents.types import NextTurn
from r3env.core import UNTRUSTED
from r3env.reasoning import response_text

REMEMBERED_TURNS = 256

_Messages = tuple[tuple[tuple[str, str], ...], ...]


class TurnTokens:
    """Writes turns with the tokenizer's chat template, each once: samples of a prompt begin alike.

    Args:
        tokenizer: of the policy.
        chat_format: of the conversations; tools are those of each call.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_format: chat.ChatFormat) -> None:
        cached = functools.lru_cache(REMEMBERED_TURNS)
        self._first = cached(functools.partial(_first, tokenizer, chat_format))
        self._following = cached(functools.partial(_following, tokenizer, chat_format))

    def first(self, messages: Sequence[Mapping[str, str]], tools: str = "") -> tuple[int, ...]:
        """Return the prompt of a conversation, see `r3env.chat.first_turn`.

        Args:
            messages: the turns so far.
            tools: what the policy may call, as JSON; empty: none.
        """
        return self._first(tools, _hashable(messages))

    def following(
        self, response_tokens: np.ndarray, messages: Sequence[Mapping[str, str]], tools: str = ""
    ) -> tuple[int, ...]:
        """Return what follows a response, see `r3env.chat.next_turns` and `first`."""
        # All that is needed of the response: the token that closes its turn, or does not.
        last = tuple(response_tokens[-1:].tolist())
        return self._following(tools, last, _hashable(messages))


class Turns:
    """Advances episodes from turn to turn; an environment's fault is its episode's error, never an exception.

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
            episode.fail("environment_error", describe_error("reset", error))

    def open(self, episode: Episode) -> None:
        """Do what `begin` does, but raise any error."""
        request, environment = episode.request, episode.environment
        takes_hint = bool(request.prompt.hint and getattr(environment.unwrapped, "takes_hint", False))
        options = _options(request.prompt, takes_hint)
        if takes_completions(environment):
            options["policy"] = policy_for(request.sampling, functools.partial(self._problem, episode))
        text, info = environment.reset(seed=request.seed % 2**31, options=options)
        episode.agent_request = next_turn_of(info)
        if episode.agent_request is not None:
            episode.counts[CHANGED_PREFIXES] = 0
        if request.prompt.attempt is not None:
            text = request.prompt.feedback or text
        if request.prompt.hint and not takes_hint:
            text = f"{text}\n\n{request.prompt.hint}"
        messages = [*info.get("conversation", ()), {"role": "user", "content": text}]
        episode.messages = [dict(message) for message in chat.with_system(messages, self.chat_format.system)]
        episode.state = _text(info, "state")
        episode.tools = json.dumps(info["tools"], ensure_ascii=False) if info.get("tools") else ""
        if episode.agent_request is not None:
            episode.tools = episode.agent_request.tools
        self._append_context(episode, self._first_prompt(request.prompt, episode))

    def generation_request(self, episode: Episode) -> GenerationRequest:
        """Make the request for the episode's next response."""
        context = np.array(episode.tokens[episode.context_start :], np.int32)
        if episode.pending:
            return GenerationRequest(context, 0, episode.request.sampling, episode.request.sampling.asked_token)
        place = [len(episode.turns), *([len(episode.chunks.written)] if episode.chunks.written else [])]
        seed = np.random.SeedSequence([episode.request.seed, *place]).generate_state(1, np.uint64)[0]
        sampling = episode.request.sampling
        room = min(
            self._room(episode), _left(episode), episode.chunks.limit(sampling), token_limit(episode.agent_request)
        )
        if room < sampling.max_response_tokens:
            sampling = replace(sampling, max_response_tokens=int(room))
        return GenerationRequest(context, int(seed), sampling)

    def has_pending_token(self, episode: Episode) -> bool:
        """Return whether to measure a token after the response: the policy has ended it, and there is room."""
        finished = episode.error is None and not episode.truncated and bool(episode.mask) and episode.mask[-1]
        return episode.request.sampling.asked_token is not None and finished and self._room(episode) > 1

    def step(self, episode: Episode, completion: Completion) -> None:
        """Step the environment with a response; unless that ends the episode, write the next prompt."""
        if _goes_on(episode, completion):
            _begin_chunk(episode, completion)
            return
        chunks, episode.chunks = episode.chunks, Chunks()
        start = chunks.start if chunks.written else len(episode.tokens)
        before = [*_response_prefix(episode), *chunks.tokens]
        episode.append_response(completion)
        text = response_text(self.tokenizer, [*before, *completion.tokens.tolist()])
        episode.messages.append({"role": "assistant", "content": text})
        if not before:  # else the text has more than these tokens
            episode.written[len(episode.messages) - 1] = Written(start, len(episode.tokens))
        try:
            observation, reward, terminated, truncated, info = self._answer(episode, start, text, completion)
            reward = float(reward)
            if not math.isfinite(reward):
                raise ValueError(f"reward {reward} is not a finite number")
            episode.counts.update(info.get("counts") or {})
            episode.calls += [(str(name), str(error)) for name, error in info.get("calls") or ()]
            if not _judge(episode, start, reward, info):
                return
            episode.rewards.update(info.get("rewards") or {})
            episode.done = episode.done or terminated or truncated
            if not episode.done and episode.agent_request is not None:
                self._append_request(episode, info)
            elif not episode.done:
                following = info.get("messages") or [{"role": "user", "content": observation}]
                episode.messages += [dict(message) for message in following]
                self._append_turns(episode, completion, following)
            feedback = _text(info, "feedback") or ("" if episode.done else observation)
            episode.turns[-1] = replace(episode.turns[-1], feedback=feedback)
            episode.state = _text(info, "state")
        except BaseException as error:  # see begin
            episode.fail("environment_error", describe_error("step", error))

    def ended(self, episode: Episode) -> None:
        """Take note that an episode has ended; nothing is noted here."""

    def _answer(
        self, episode: Episode, start: int, text: str, completion: Completion
    ) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Step the environment; one that runs an agent gets the response with all that is known of it."""
        environment: Any = episode.environment
        if episode.agent_request is None:
            return environment.step(text)
        prompt = episode.tokens[episode.context_start : start]
        return environment.unwrapped.complete(chat_completion(self.tokenizer, text, prompt, completion))

    def _append_turns(self, episode: Episode, completion: Completion, following: Sequence[Mapping[str, str]]) -> None:
        """Write the next turns and their prompt: behind what is there, or all of it anew."""
        if not self.chat_format.rerender:
            self._append_context(episode, self._tokens.following(completion.tokens, following, episode.tools))
            return
        tokens = self._tokens.first(episode.messages, episode.tools)
        self._check_room(len(tokens))
        episode.new_context(tokens)

    def _append_request(self, episode: Episode, info: Mapping[str, Any]) -> None:
        """Write an agent's request behind the turn that it follows, or into a context of its own."""
        episode.agent_request = turn = next_turn_of(info)
        if turn is None:
            raise ValueError("the environment's info has no `next_turn`, the agent's next request")
        tokens, behind = self._request_tokens(episode, turn)
        episode.messages += [dict(message) for message in (turn.messages if turn.follows is None else turn.new)]
        episode.counts[CHANGED_PREFIXES] += turn.follows is None
        if behind:
            self._append_context(episode, tokens)
            return
        self._check_room(len(tokens))
        episode.new_context(tokens)

    def _request_tokens(self, episode: Episode, turn: NextTurn) -> tuple[Sequence[int], bool]:
        """Tokens of an agent's request, and whether they go behind what is there.

        What the policy sampled stays as it was sampled: behind an earlier turn a context begins with its very tokens.
        """
        if turn.follows is None or self.chat_format.rerender:
            return self._tokens.first(turn.messages, turn.tools), False
        start, end = episode.spans[turn.follows]
        following = self._tokens.following(np.array(episode.tokens[end - 1 : end], np.int32), turn.new, turn.tools)
        behind = end == len(episode.tokens)
        return (following if behind else (*episode.tokens[start:end], *following)), behind

    def _problem(self, episode: Episode, turn: NextTurn) -> str | None:
        """Why an agent's request cannot be answered; None: it can."""
        try:
            tokens, behind = self._request_tokens(episode, turn)
            if turn.tools and turn.follows is None and tokens == self._tokens.first(turn.messages):
                return "tools: the model's chat template leaves them out; fix: describe them in a message"
            self._check_room(len(tokens) + (len(episode.tokens) - episode.context_start if behind else 0))
        except Exception as error:  # a template is a program of somebody else's, and may refuse anything
            return f"the conversation cannot be continued: {error}"
        return None

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
        return (*before, *_response_prefix(episode))


def _options(prompt: Prompt, takes_hint: bool) -> dict[str, Any]:
    """Options of an environment's `reset`."""
    options: dict[str, Any] = {"uid": prompt.uid}
    if prompt.attempt is not None:
        options["failed_attempt"] = prompt.attempt.text
        if prompt.attempt.feedback:
            options["attempt_feedback"] = prompt.attempt.feedback
    if prompt.variant:
        options["variant"] = prompt.variant
    if prompt.problem:
        options["problem"] = prompt.problem
    if prompt.hint and takes_hint:
        options["hint"] = prompt.hint
    return options


def _response_prefix(episode: Episode) -> list[int]:
    """Tokens that this assistant turn begins with; only the first one may begin with any."""
    prefix = episode.request.prompt.response_prefix
    return [] if episode.turns or prefix is None else prefix.tolist()


def _left(episode: Episode) -> int:
    """Tokens that the response in progress may still have, of which a prefix is a part; at least one."""
    written = len(_response_prefix(episode)) + len(episode.chunks.tokens)
    return max(1, episode.request.sampling.max_response_tokens - written)


def _goes_on(episode: Episode, completion: Completion) -> bool:
    """Whether a completion is a full chunk, with more of the response to come."""
    limit, length = episode.chunks.limit(episode.request.sampling), len(completion.tokens)
    full = completion.finish_reason is FinishReason.LENGTH and length == limit
    return episode.agent_request is None and full and length < _left(episode)


def _begin_chunk(episode: Episode, completion: Completion) -> None:
    """Add a full chunk, and begin the context of the next one."""
    chunks = episode.chunks
    if not chunks.written:
        chunks.prompt, chunks.start = episode.tokens[episode.context_start :], len(episode.tokens)
    episode.append_response(completion)
    episode.truncated = False
    episode.spans.pop()  # the turn has not ended
    chunks.written.append(completion.tokens.tolist())
    episode.new_context(chunks.context(episode.request.sampling))


def _text(info: Mapping[str, Any], key: str) -> str:
    value = info.get(key)
    return "" if value is None else str(value)


def _judge(episode: Episode, start: int, reward: float, info: Mapping[str, Any]) -> bool:
    """Take in the environment's judgment of the turn that begins at `start`; returns whether it can be trusted."""
    correct = bool(info.get("correct", reward > 0))
    episode.verdict = str(info.get("verdict", "equal" if correct else "different"))
    episode.answer = _text(info, "answer") or None
    if episode.verdict in UNTRUSTED:
        why = _text(info, "feedback")
        episode.fail(episode.verdict, f"the answer could not be graded: {episode.verdict}{why and f': {why}'}")
        return False
    if episode.truncated and correct and episode.agent_request is not None:
        episode.truncated = False  # an agent knows what it makes of an unfinished response
    elif episode.truncated and correct:
        # A box in an unfinished response does not count.
        correct, reward, episode.verdict, episode.done = False, 0.0, "truncated", True
    episode.reward += reward
    episode.correct = correct
    episode.turns.append(Turn(start, len(episode.tokens), reward, correct, state=episode.state))
    return True


def _first(
    tokenizer: PreTrainedTokenizerBase, chat_format: chat.ChatFormat, tools: str, messages: _Messages
) -> tuple[int, ...]:
    return tuple(chat.first_turn(tokenizer, list(map(dict, messages)), _with_tools(chat_format, tools)))


def _following(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: chat.ChatFormat,
    tools: str,
    last: tuple[int, ...],
    messages: _Messages,
) -> tuple[int, ...]:
    return tuple(chat.next_turns(tokenizer, last, list(map(dict, messages)), _with_tools(chat_format, tools)))


def _with_tools(chat_format: chat.ChatFormat, tools: str) -> chat.ChatFormat:
    return replace(chat_format, tools=json.loads(tools)) if tools else chat_format


def _hashable(messages: Sequence[Mapping[str, str]]) -> _Messages:
    return tuple(tuple(message.items()) for message in messages)
