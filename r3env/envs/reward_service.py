"""Reward functions that stay: made once, and called with many responses at a time in one asyncio loop.

They may hold a connection pool or a loaded model. Nothing here fences them: code that is not trusted belongs into the
forks of `r3env.child_processes.subprocess_scorer`. No Ray here; `algorithms.rollout.reward_actors` runs it in actors.
"""

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from r3env.core import Reason, Verdict
from r3env.envs.function_calls import Opinion, Response, agree, arguments_of, each_of, failure, fields, read
from r3env.envs.function_loading import RewardFunction, make
from r3env.named_functions import FunctionLoadError

# Responses that end together are given to a function together.
_GATHER_S = 0.005
# Before a call is repeated; twice as long each further time.
_BACKOFF_S = 0.5

_Outcome = Opinion | None | dict[str, Any]  # of a function, or the fields of a verdict where it has failed


class RewardService:
    """Judges responses with reward functions.

    Args:
        concurrency: responses that a function judges at once: in coroutines where it is `async`, else in threads; one
            that takes `completions` gets at most so many in a batch, and one batch at a time unless it is `async`.
        retries: how often a call that raised is repeated.
        rate: calls per second; None: no bound.
        on_stuck: called when every thread of a function is in a call that has run out of time.
    """

    def __init__(
        self, *, concurrency: int, retries: int, rate: float | None = None, on_stuck: Callable[[], None] = lambda: None
    ) -> None:
        self.concurrency, self.retries, self.on_stuck = concurrency, retries, on_stuck
        self._interval_s = 1.0 / rate if rate else 0.0
        self._next_call = 0.0
        self._making = asyncio.Lock()
        self._functions: dict[tuple[str, bool | None], asyncio.Task[_Served]] = {}

    @property
    def loading(self) -> bool:
        """Whether a function is being made."""
        return not all(task.done() for task in self._functions.values())

    async def judge(
        self,
        made_from: tuple[Sequence[str], Sequence[float], float, bool | None],
        row: Mapping[str, Any],
        prompt: str,
        turns: Sequence[Mapping[str, str]],
        timeout_s: float,
    ) -> dict[str, Any]:
        """Judge a response, as `r3env.envs.function_calls.judge` does.

        Args:
            made_from: names, weights, `correct_at` and `messages` of `r3env/Function-v0`.
            row: see `Response`.
            prompt: see `Response`.
            turns: see `Response`.
            timeout_s: what one call of a function may take; neither making it nor waiting for its turn counts.
        """
        names, weights, correct_at, messages = made_from
        response = Response(row, prompt, turns)
        try:
            served = await asyncio.gather(*(self._served(name, messages) for name in names))
        except FunctionLoadError as error:
            return fields(Verdict(False, Reason.ERROR, feedback=str(error)))
        outcomes = await asyncio.gather(*(function.judge(response, timeout_s) for function in served))
        failed = next((outcome for outcome in outcomes if isinstance(outcome, dict)), None)
        if failed is not None:
            return failed
        return agree(names, weights, correct_at, [each for each in outcomes if not isinstance(each, dict)])

    async def pace(self) -> None:
        """Wait until the rate allows a call."""
        now = asyncio.get_running_loop().time()
        due, self._next_call = self._next_call, max(now, self._next_call) + self._interval_s
        if due > now:
            await asyncio.sleep(due - now)

    async def _served(self, name: str, messages: bool | None) -> "_Served":
        """Return a function that is made once; an error of its making is every response's."""
        key = name, messages
        if key not in self._functions:
            self._functions[key] = asyncio.create_task(self._make(name, messages))
        return await asyncio.shield(self._functions[key])

    async def _make(self, name: str, messages: bool | None) -> "_Served":
        async with self._making:  # functions of a file are imported with it
            return _Served(self, await asyncio.to_thread(make, name), messages)


class _Served:
    """A reward function that is called by a service."""

    def __init__(self, service: RewardService, function: RewardFunction, messages: bool | None) -> None:
        self._service, self._function, self._messages = service, function, messages
        called = function.function
        is_async = any(map(inspect.iscoroutinefunction, (called, type(called).__call__)))
        in_batches = function.parameters.trl
        self._most = service.concurrency if in_batches else 1
        self._gather_s = _GATHER_S if in_batches else 0.0
        calls = 1 if in_batches and not is_async else service.concurrency
        self._turns = asyncio.Semaphore(calls)
        self._threads = None if is_async else ThreadPoolExecutor(2 * calls)
        self._stuck: set[Future[Any]] = set()
        self._calls = calls
        self._waiting: deque[tuple[Response, asyncio.Future[_Outcome]]] = deque()

    async def judge(self, response: Response, timeout_s: float) -> _Outcome:
        """Judge a response together with others that wait."""
        outcome: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((response, outcome))
        if self._gather_s:
            await asyncio.sleep(self._gather_s)
        async with self._turns:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
            if batch:  # else another turn has taken it along
                found = await self._judge([each for each, _ in batch], timeout_s)
                for (_, waiting), one in zip(batch, found, strict=True):
                    waiting.set_result(one)
        return await outcome

    async def _judge(self, responses: Sequence[Response], timeout_s: float) -> Sequence[_Outcome]:
        """Call the function with a batch; repeat a call that raises, but none that takes too long."""
        name = self._function.name
        for attempt in range(self._service.retries + 1):
            await self._service.pace()
            limit = asyncio.timeout(timeout_s)
            try:
                async with limit:
                    value = await self._call(responses)
                return [self._read(each) for each in each_of(self._function, value, len(responses))]
            except (Exception, SystemExit, asyncio.CancelledError) as error:  # the last one a function's own
                if limit.expired():
                    late = f"{name} took longer than {timeout_s:g} s (environment.grading_timeout_s)"
                    outcome = fields(Verdict(False, Reason.TIMEOUT, feedback=late))
                    break
                outcome = failure(self._function, error, self._messages)
            if attempt < self._service.retries:
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
        return [outcome] * len(responses)

    async def _call(self, responses: Sequence[Response]) -> Any:
        arguments = arguments_of(self._function, responses, self._messages)
        call = functools.partial(self._function.function, **arguments)
        value = call() if self._threads is None else await self._in_thread(self._threads, call)
        return await value if inspect.isawaitable(value) else value

    async def _in_thread(self, threads: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
        work = threads.submit(call)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:  # too late, and a thread cannot be ended
            if not work.done():
                self._stuck.add(work)
                work.add_done_callback(self._stuck.discard)
                if len(self._stuck) == self._calls:
                    self._service.on_stuck()
            raise

    def _read(self, value: Any) -> _Outcome:
        try:
            return read(value)
        except (Exception, SystemExit) as error:
            return failure(self._function, error, self._messages)
