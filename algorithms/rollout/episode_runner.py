"""Run episodes: environments on one side, an engine on the other. No Ray here."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import gymnasium
from transformers import PreTrainedTokenizerBase

from algorithms.rollout.agent_turns import give_up
from algorithms.rollout.engines.base import Engine
from algorithms.rollout.env_threads import SteppingThreads, Work
from algorithms.rollout.episode_record import Episode
from algorithms.rollout.failures import describe_error
from algorithms.rollout.turns import Turns
from algorithms.rollout.types import Request, Rollout, Split
from r3env.chat import DEFAULT_FORMAT, ChatFormat

# An answer that takes its grader long holds a thread: with 16 of them the others waited in line.
STEPPING_THREADS = 256
# In rounds, turns advance together, in batches that are the same in every run, unless an environment takes longer than
# this: then those that are ready continue without it.
PATIENCE_S = 1.0
BEGINNING_S = 60.0
# An engine with free places waits this long for episodes that begin: resets are mostly quicker than its step.
FILLING_S = 0.05
# How often environments are looked after that never answer.
OVERDUE_EVERY_S = 0.5
# How often more threads are woken while environments wait for one.
SPREADING_S = 0.005
_NOT_MADE: gymnasium.Env[str, str] = gymnasium.Env()  # in an episode until a thread has made its environment

_logger = logging.getLogger(__name__)


class EpisodeRunner:
    """Runs any number of episodes at once.

    With continuous batching a response that ends is stepped in a thread while the others are decoded, and its next turn
    joins them. With another engine episodes advance in rounds: all that are ready decode, then all of them step.

    Args:
        engine: samples the responses.
        tokenizer: of the policy, with its chat template.
        make_environment: by split; called in a thread for each concurrent episode; its environments are used again.
        concurrency: responses that continuous batching decodes at once: episodes beyond what keeps it and the
            stepping threads busy wait without an environment; None: all begin at once.
        most_begun: further bound on the episodes that have begun, with any engine; None: none.
        step_timeout_s: an environment that is made, at a reset or at a step for longer fails its episode, and is not
            used again; its thread is left to itself.
        chat_format: of the conversations.
        make_turns: makes what advances episodes, see `Turns`.

    Attributes:
        turns: what it has made.
        generated_tokens: of all responses that have ended so far.
        engine_seconds: spent in the engine so far.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        make_environment: Mapping[Split, Callable[[], gymnasium.Env[str, str]]],
        concurrency: int | None = None,
        step_timeout_s: float = math.inf,
        chat_format: ChatFormat = DEFAULT_FORMAT,
        most_begun: int | None = None,
        make_turns: Callable[..., Turns] = Turns,
    ) -> None:
        self.engine = engine
        self.generated_tokens = 0
        self.engine_seconds = 0.0
        self.turns = make_turns(tokenizer, engine.context_length, chat_format)
        self._make_environment = make_environment
        self._idle: dict[Split, list[gymnasium.Env[str, str]]] = {split: [] for split in Split}
        self._concurrency = math.inf if concurrency is None else concurrency
        self._bound = math.inf if most_begun is None else most_begun
        self._most_begun = min(self._bound, 2 * self._concurrency + STEPPING_THREADS)
        self._step_timeout_s = step_timeout_s
        self._next_look = 0.0
        self._stepped: SimpleQueue[Work] = SimpleQueue()
        self._threads = SteppingThreads(STEPPING_THREADS, self._stepped.put)
        self._begun = 0
        self._waiting: dict[int, Request] = {}
        self._running: dict[int, Episode] = {}
        self._stepping: dict[Work, Episode] = {}
        self._ready: list[Episode] = []
        self._finished: list[Rollout] = []
        self._patience_ends = 0.0

    @property
    def unfinished(self) -> int:
        """The number of episodes that were added and not returned yet."""
        return len(self._waiting) + len(self._running)

    def rollout(self, requests: Sequence[Request]) -> list[Rollout]:
        """Run every request to its end, and return the rollouts sorted by request id.

        What goes wrong inside one episode is that episode's `error`, never an exception.

        Raises:
            RuntimeError: other episodes are unfinished.
        """
        if self.unfinished:
            raise RuntimeError(f"{self.unfinished} episodes are unfinished; advance() or withdraw() them first")
        self.add(requests)
        try:
            return sorted(self.advance(math.inf), key=lambda rollout: rollout.request_id)
        except BaseException:
            # A retry after an error or an interrupt starts afresh.
            self.withdraw([*self._waiting, *self._running])
            raise

    def add(self, requests: Iterable[Request]) -> None:
        """Accept requests; their ids must not be those of unfinished ones."""
        for request in requests:
            if request.id in self._waiting or request.id in self._running:
                raise ValueError(f"request {request.id} is running already")
            self._waiting[request.id] = request

    def withdraw(self, request_ids: Collection[int]) -> list[int]:
        """Drop unfinished episodes, and return their ids; the result of a step in progress is ignored."""
        dropped = [key for key in request_ids if key in self._waiting or key in self._running]
        self.engine.abort([key for key in dropped if key in self._running])
        under_way = {id(episode) for episode in self._stepping.values()}
        for key in dropped:
            self._waiting.pop(key, None)
            episode = self._running.pop(key, None)
            if episode is not None:
                episode.observed = None
                if id(episode) not in under_way:
                    self._put_back(episode)
        self._ready = [episode for episode in self._ready if self._is_running(episode)]
        return dropped

    def advance(self, seconds: float) -> list[Rollout]:
        """Run until the time is over or nothing is left, and return finished episodes in the order of their ends.

        With continuous batching it returns within a step of the time, without it at the end of a batch.
        """
        deadline = time.monotonic() + seconds
        advance = self._stream if self.engine.continuous_batching else self._run_round
        while self.unfinished:
            advance(deadline)
            if time.monotonic() >= deadline:
                break
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Close the environments and the engine."""
        self._threads.close()
        at_work = [episode.environment for episode in (*self._running.values(), *self._stepping.values())]
        idle = [environment for each in self._idle.values() for environment in each]
        for environment in {id(each): each for each in [*at_work, *idle]}.values():
            close_environment(environment)
        self.engine.close()

    def _stream(self, deadline: float) -> None:
        """Advance a continuous batch by a step, which every episode that is ready joins."""
        self._collect_stepped(until=0.0)
        if self._waiting and len(self._running) < self._most_begun:
            self._fill(until=min(deadline, time.monotonic() + FILLING_S))
        self._submit_ready()
        if self.engine.unfinished:
            self._generate()
        elif self._running:
            self._collect_stepped(until=deadline)

    def _fill(self, until: float) -> None:
        """Begin as many episodes as may be begun; wait until then while the engine has places for them."""
        while self._waiting and len(self._running) < self._most_begun:
            self._launch(self._begin, self._next_waiting())
        while self.engine.unfinished + len(self._ready) < self._concurrency and time.monotonic() < until:
            if not self._stepping:
                return
            self._collect_stepped(until)

    def _run_round(self, deadline: float) -> None:
        """One batch of a round, or, when they are all done, what lies between two rounds."""
        if self.engine.unfinished:
            self._generate()
            self._threads.spread()
            self._patience_ends = time.monotonic() + PATIENCE_S
            return
        self._begin_all()
        self._collect_stepped(until=0.0)
        while self._stepping and time.monotonic() < min(deadline, self._patience_ends):
            self._collect_stepped(until=min(deadline, self._patience_ends))
        if self._stepping and not self._ready:
            self._collect_stepped(until=deadline)
        if not self._stepping or time.monotonic() >= self._patience_ends:
            # In the requests' order, so that batches do not depend on which of them came back first.
            self._ready.sort(key=lambda episode: episode.place)
            self._submit_ready()

    def _begin_all(self) -> None:
        """Begin all that wait and may, to the end: how long it takes must not decide which episodes share a batch."""
        count = min(len(self._waiting), self._bound - len(self._running))
        beginning = {self._launch(self._begin, self._next_waiting()) for _ in range(int(count))}
        ends = time.monotonic() + BEGINNING_S  # those that have begun may hold what the others wait for
        while beginning & self._stepping.keys() and not (self._ready and time.monotonic() >= ends):
            self._collect_stepped(until=ends if self._ready else math.inf)

    def _generate(self) -> None:
        started = time.perf_counter()
        completions = self.engine.step()
        self.engine_seconds += time.perf_counter() - started
        for key, completion in completions:
            if self._running[key].pending:
                self._running[key].asked_logprob = float(completion.logprobs[0])
                self._put_back(self._running[key])
                self._finish(self._running[key])
                continue
            if not completion.versions:
                completion = replace(completion, versions=((self.engine.weights_version, len(completion.tokens)),))
            self.generated_tokens += len(completion.tokens)
            self._launch(self.turns.step, self._running[key], completion)

    def _submit_ready(self) -> None:
        for episode in self._ready:
            self.engine.submit(episode.request.id, self.turns.generation_request(episode))
        self._ready = []

    def _launch(self, call: Callable[..., None], episode: Episode, *arguments: Any) -> Work:
        work = Work(call, (episode, *arguments))
        self._stepping[work] = episode
        self._threads.submit(work)
        return work

    def _collect_stepped(self, until: float) -> None:
        """Take what the threads have done, waiting for the first of it until then, but not for long."""
        if not self._stepping:
            if self._running and not self.engine.unfinished and not self._ready:
                raise RuntimeError(f"the engine lost {len(self._running)} requests")
            return
        self._fail_overdue()
        longest = SPREADING_S if self._threads.spread() else OVERDUE_EVERY_S
        wait = min(longest, max(0.0, until - time.monotonic()))
        try:
            work = self._stepped.get(timeout=wait)
            while True:
                episode = self._stepping.pop(work, None)
                if episode is not None:  # else it was given up
                    if work.error is not None:
                        raise work.error
                    self._take_stepped(episode)
                work = self._stepped.get_nowait()
        except Empty:
            return

    def _fail_overdue(self) -> None:
        """End the episodes whose environment does not come back."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + OVERDUE_EVERY_S
        for work in self._threads.overdue(self._step_timeout_s):
            self._threads.give_up(work)
            episode = self._stepping.pop(work, None)
            if episode is not None:
                give_up(episode.environment)
            if episode is None or not self._is_running(episode):
                continue
            error = f"the environment did not return within {self._step_timeout_s:g} s (env_runners.step_timeout_s)"
            given_up, episode.observed = episode.given_up(error), None
            self._finish(given_up)

    def _take_stepped(self, episode: Episode) -> None:
        if episode.done and self._is_running(episode) and self.turns.has_pending_token(episode):
            episode.pending = True
            self._ready.append(episode)
            return
        if episode.done or not self._is_running(episode):
            self._put_back(episode)
        if not self._is_running(episode):
            return
        if episode.done:
            self._finish(episode)
        else:
            self._ready.append(episode)

    def _finish(self, episode: Episode) -> None:
        del self._running[episode.request.id]
        self.turns.ended(episode)
        self._finished.append(episode.rollout(self.engine.weights_version))

    def _next_waiting(self) -> Episode:
        key = next(iter(self._waiting))
        request = self._waiting[key]
        idle = self._idle[request.split]
        episode = Episode(request, idle.pop() if idle else _NOT_MADE, place=self._begun)
        self._begun += 1
        self._running[key] = episode
        del self._waiting[key]
        return episode

    def _begin(self, episode: Episode) -> None:
        """In a thread: make the environment unless there is one, and reset it."""
        if episode.environment is _NOT_MADE:
            try:
                episode.environment = self._make_environment[episode.request.split]()
            except BaseException as error:  # as in Turns.begin
                episode.fail("environment_error", describe_error("make", error))
                return
        self.turns.begin(episode)

    def _put_back(self, episode: Episode) -> None:
        if episode.environment is not _NOT_MADE:
            give_up(episode.environment)
            self._idle[episode.request.split].append(episode.environment)

    def _is_running(self, episode: Episode) -> bool:
        """Return whether it has not been withdrawn."""
        return self._running.get(episode.request.id) is episode


def close_environment(environment: gymnasium.Env[str, str]) -> None:
    """Close an environment; what it raises costs nothing any more, and others are still to be closed."""
    try:
        environment.close()
    except (Exception, SystemExit):  # a user's environment may raise anything
        _logger.debug("%s cannot be closed", environment, exc_info=True)
