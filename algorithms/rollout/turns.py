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
from algorithms.rollout.failures import NO_ROOM, describe_error
from algorithms.rollout.summaries import INSTRUCTION, Summaries
from algorithms.rollout.turn_tokens import TurnTokens
from algorithms.rollout.types import TRUNCATED, Prompt, Turn, Written
from r3env import chat
from r3env.agents.types import NextTurn
from r3env.core import UNTRUSTED
from r3env.reasoning import response_text


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
        own = len(episode.tokens) - len(_response_prefix(episode))
        episode.summaries = Summaries(len(episode.messages), own)

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
            if episode.summaries.unread is not None:
                self._continue_behind_summary(episode, start, completion)
                return
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
        """Write the next turns and their prompt; where these leave too little room, ask for a summary first."""
        summaries, most = episode.summaries, episode.request.sampling.max_summaries
        tokens, behind = self._turn_tokens(episode, completion, following)
        if self._is_full(episode, tokens, behind):
            spent = summaries.has_last(episode.messages) or len(summaries.places) >= most
            summaries.unread, following = following, [INSTRUCTION]
            tokens, behind = self._turn_tokens(episode, completion, following)
            if spent or self._is_full(episode, tokens, behind, asked=True):
                episode.cut_off()
                return
        episode.messages += [dict(message) for message in following]
        self._append(episode, tokens, behind)

    def _continue_behind_summary(self, episode: Episode, start: int, completion: Completion) -> None:
        """Begin the context behind the summary that the policy has written, with what the environment said before."""
        summaries = episode.summaries
        episode.turns.append(Turn(start, len(episode.tokens), correct=episode.correct))
        summaries.places.append(len(episode.messages) - 1)
        following, summaries.unread = summaries.unread or (), None
        self._append_turns(episode, completion, following)

    def _turn_tokens(
        self, episode: Episode, completion: Completion, following: Sequence[Mapping[str, str]]
    ) -> tuple[Sequence[int], bool]:
        """Tokens of the next turns, and whether they go behind what is there, as in `_request_tokens`."""
        summaries = episode.summaries
        if self.chat_format.rerender:
            return self._tokens.first([*summaries.shown(episode.messages), *following], episode.tools), False
        tokens = self._tokens.following(completion.tokens, following, episode.tools)
        if not summaries.has_last(episode.messages):
            return tokens, True
        return (*episode.tokens[: summaries.first_tokens], *completion.tokens.tolist(), *tokens), False

    def _is_full(self, episode: Episode, tokens: Sequence[int], behind: bool, *, asked: bool = False) -> bool:
        """Whether a context of these tokens lacks room for a response and a summary; `asked`: for the summary alone."""
        sampling = episode.request.sampling
        if sampling.max_context_tokens is None:
            return False
        needed = len(tokens) + sampling.max_response_tokens
        if behind:
            needed += len(episode.tokens) - episode.context_start
        if not asked:
            asking = self._tokens.following(np.zeros(0, np.int32), [INSTRUCTION], episode.tools)
            needed += len(asking) + sampling.max_response_tokens
        return needed > min(sampling.max_context_tokens, self.context_length or sys.maxsize)

    def _append_request(self, episode: Episode, info: Mapping[str, Any]) -> None:
        """Write an agent's request behind the turn that it follows, or into a context of its own."""
        episode.agent_request = turn = next_turn_of(info)
        if turn is None:
            raise ValueError("the environment's info has no `next_turn`, the agent's next request")
        tokens, behind = self._request_tokens(episode, turn)
        episode.messages += [dict(message) for message in (turn.messages if turn.follows is None else turn.new)]
        episode.counts[CHANGED_PREFIXES] += turn.follows is None
        self._append(episode, tokens, behind)

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

    def _append(self, episode: Episode, tokens: Sequence[int], behind: bool) -> None:
        """Write tokens behind what is there, or into a context of their own."""
        if behind:
            self._append_context(episode, tokens)
            return
        self._check_room(len(tokens))
        episode.new_context(tokens)

    def _append_context(self, episode: Episode, tokens: Sequence[int]) -> None:
        self._check_room(len(episode.tokens) - episode.context_start + len(tokens))
        episode.append_context(tokens)

    def _check_room(self, length: int) -> None:
        if self.context_length and self.context_length <= length:
            raise ValueError(f"{length} tokens {NO_ROOM} {self.context_length}")

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
    """Return whether a completion is a full chunk, with more of the response to come."""
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
        correct, reward, episode.verdict, episode.done = False, 0.0, TRUNCATED, True
    episode.reward += reward
    episode.correct = correct
    episode.turns.append(Turn(start, len(episode.tokens), reward, correct, state=episode.state))
    return True
