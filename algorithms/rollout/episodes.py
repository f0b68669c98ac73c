"""Play episodes: environments on one side, an engine on the other. No Ray here."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np

from algorithms.rollout.engines.base import Completion, Engine, FinishReason, GenerationRequest
from algorithms.rollout.types import Context, Request, Rollout, Split
from r3env import chat

# Verdicts that say nothing about the answer: their rollouts leave the group.
UNTRUSTED_VERDICTS = frozenset({"timeout", "error"})
# An answer that takes its grader long holds a thread: with 16 of them the others waited in line.
STEPPING_THREADS = 256
# Turns go on together, in batches that are the same in every run, unless an environment takes longer than this: then
# those that are ready go on without it.
PATIENCE_S = 1.0


@dataclass
class _Episode:
    """An episode in progress; one is turned into a `Rollout` when it ends."""

    request: Request
    environment: gymnasium.Env[str, str]
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
        self.tokens += tokens
        self.mask += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)

    def append_response(self, completion: Completion) -> None:
        self.tokens += completion.tokens.tolist()
        self.mask += [True] * len(completion.tokens)
        self.logprobs += completion.logprobs.tolist()

    def fail(self, verdict: str, error: str) -> None:
        self.done, self.correct, self.verdict, self.error = True, False, verdict, error


class EpisodePlayer:
    """Plays any number of episodes at once.

    Args:
        engine: samples the responses.
        tokenizer: of the policy, with its chat template.
        make_environment: by split; called once for each concurrent episode, and its environments are used again.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        make_environment: Mapping[Split, Callable[[], gymnasium.Env[str, str]]],
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self._make_environment = make_environment
        self._idle: dict[Split, list[gymnasium.Env[str, str]]] = {split: [] for split in Split}
        self._threads = ThreadPoolExecutor(STEPPING_THREADS, thread_name_prefix="environment")

    def play(self, requests: Sequence[Request]) -> list[Rollout]:
        """Play every request to its end.

        What goes wrong inside one episode is that episode's `error`, never an exception.
        """
        episodes = [self._begin(request) for request in requests]
        place = {id(episode): index for index, episode in enumerate(episodes)}
        ready = [episode for episode in episodes if not episode.done]
        stepping: dict[Future[None], _Episode] = {}
        while ready or stepping:
            asked = [self._generation_request(episode) for episode in ready]
            completions = self.engine.generate(asked) if asked else []
            for episode, completion in zip(ready, completions, strict=True):
                stepping[self._threads.submit(self._step, episode, completion)] = episode
            stepped = [stepping.pop(future) for future in self._settled(stepping)]
            # In the requests' order, so that batches do not depend on which of them came back first.
            ready = sorted((e for e in stepped if not e.done), key=lambda episode: place[id(episode)])
        for episode in episodes:
            self._idle[episode.request.split].append(episode.environment)
        return [self._finish(episode) for episode in episodes]

    @staticmethod
    def _settled(stepping: Mapping[Future[None], _Episode]) -> set[Future[None]]:
        """The steps that are done: all of them, or, once the patience is over, at least one."""
        settled, _ = wait(stepping, timeout=PATIENCE_S)
        if not settled:
            settled, _ = wait(stepping, return_when=FIRST_COMPLETED)
        for future in settled:
            future.result()
        return settled

    def close(self) -> None:
        """Close the environments and the engine."""
        self._threads.shutdown()
        for environments in self._idle.values():
            for environment in environments:
                environment.close()
        self.engine.close()

    def _begin(self, request: Request) -> _Episode:
        idle = self._idle[request.split]
        environment = idle.pop() if idle else self._make_environment[request.split]()
        episode = _Episode(request, environment)
        options: dict[str, Any] = {"uid": request.uid}
        if request.attempt is not None:
            options["failed_attempt"] = request.attempt.text
        try:
            text, info = environment.reset(seed=request.seed % 2**31, options=options)
            episode.messages = [*info.get("conversation", ()), {"role": "user", "content": text}]
            self._append_context(episode, self._first_prompt(request, episode.messages))
        except Exception as error:  # a user's environment may raise or return anything; it is this episode's data
            episode.fail("environment_error", f"reset: {error!r}")
        return episode

    def _append_context(self, episode: _Episode, tokens: Sequence[int]) -> None:
        if self._room(episode) <= len(tokens):
            raise ValueError(
                f"{len(episode.tokens) + len(tokens)} tokens leave no room in the model's {self.engine.context_length}"
            )
        episode.append_context(tokens)

    def _room(self, episode: _Episode) -> int:
        """Tokens that the model's context has left."""
        return (self.engine.context_length or sys.maxsize) - len(episode.tokens)

    def _first_prompt(self, request: Request, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if request.attempt is None:
            return chat.first_turn(self.tokenizer, messages)
        prompt, response = request.attempt.prompt_tokens.tolist(), request.attempt.response_tokens.tolist()
        return prompt + response + chat.next_turn(self.tokenizer, response, messages[-1]["content"])

    def _generation_request(self, episode: _Episode) -> GenerationRequest:
        turn = len(episode.turn_correct)
        seed = np.random.SeedSequence([episode.request.seed, turn]).generate_state(1, np.uint64)[0]
        asked = episode.request.sampling
        sampling = replace(asked, max_response_tokens=min(asked.max_response_tokens, self._room(episode)))
        return GenerationRequest(np.array(episode.tokens, np.int32), int(seed), sampling)

    def _step(self, episode: _Episode, completion: Completion) -> None:
        episode.append_response(completion)
        episode.truncated = completion.finish_reason is FinishReason.LENGTH
        text = self.tokenizer.decode(completion.tokens.tolist(), skip_special_tokens=True)
        episode.messages.append({"role": "assistant", "content": text})
        try:
            observation, reward, terminated, truncated, info = episode.environment.step(text)
            reward = float(reward)
            if not math.isfinite(reward):
                raise ValueError(f"reward {reward} is not a finite number")
            self._judge(episode, reward, info)
            episode.done = episode.done or terminated or truncated
            if not episode.done:
                following = chat.next_turn(self.tokenizer, completion.tokens.tolist(), observation)
                self._append_context(episode, following)
                episode.messages.append({"role": "user", "content": observation})
        except Exception as error:  # see _begin
            episode.fail("environment_error", f"step: {error!r}")

    @staticmethod
    def _judge(episode: _Episode, reward: float, info: Mapping[str, Any]) -> None:
        correct = bool(info.get("correct", reward > 0))
        episode.verdict = str(info.get("verdict", "equal" if correct else "different"))
        if episode.verdict in UNTRUSTED_VERDICTS:
            episode.fail(episode.verdict, f"the answer could not be graded: {episode.verdict}")
            return
        if episode.truncated and correct:
            # A box in an unfinished response does not count.
            correct, reward, episode.verdict, episode.done = False, 0.0, "truncated", True
        episode.reward += reward
        episode.correct = correct
        episode.turn_correct.append(correct)

    def _finish(self, episode: _Episode) -> Rollout:
        request = episode.request
        return Rollout(
            request_id=request.id,
            uid=request.uid,
            group=request.group,
            context=Context.REFLECTION if request.attempt else Context.PLAIN,
            tokens=np.array(episode.tokens, np.int32),
            loss_mask=np.array(episode.mask, bool),
            engine_logprobs=np.array(episode.logprobs, np.float32),
            reward=episode.reward,
            correct=episode.correct,
            truncated=episode.truncated,
            verdict=episode.verdict,
            weights_version=self.engine.weights_version,
            messages=tuple(episode.messages),
            error=episode.error,
            turn_correct=tuple(episode.turn_correct),
        )
