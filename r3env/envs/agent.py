"""`r3env/Agent-v0`: problems of a data set, solved by an agent that calls the policy over a chat endpoint."""

import asyncio
import functools
import inspect
import math
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from gymnasium.error import ResetNeeded

from r3env.agents.branches import Branches
from r3env.agents.protocol import MODEL
from r3env.agents.server import check_files, endpoint
from r3env.agents.session import Finished, Pending, Session
from r3env.agents.types import Completion, NextTurn, Policy, RequestError
from r3env.core import Query, Reason, Verdict, reaches
from r3env.envs.math import MathEnv
from r3env.grading.answer_forms import BOX
from r3env.named_functions import FunctionLoadError, awaited, check_names, describe, load_function
from r3env.reasoning import visible_text
from r3env.registry import OptionError


def run_coroutine(result: Awaitable[Any]) -> Any:
    """Wait for what an agent's coroutine returns, in a loop of its own; close its connections after it."""
    with asyncio.Runner(loop_factory=_AgentLoop) as runner:
        return runner.run(awaited(result))


class _AgentLoop(asyncio.SelectorEventLoop):
    """A loop whose connections end with it.

    A client that outlives it, for nobody closed it, would keep sockets open. When Python frees such a client it would
    close them through a loop that is closed itself, which raises in whatever runs then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._opened: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """Connect, and take note of it."""
        transport, protocol = await super().create_connection(*arguments, **options)
        self._opened.add(transport)
        return transport, protocol

    def close(self) -> None:
        """Close the connections, then the loop."""
        left = [] if self.is_closed() else [transport for transport in self._opened if not transport.is_closing()]
        for transport in left:
            transport.abort()
        if left:
            self.run_until_complete(asyncio.sleep(0))  # in which sockets are closed
        super().close()


_BOXES = ("boxed", "fbox")

Agent = Callable[[Query, str, str], Any]


class AgentEnv(MathEnv):
    """Problems of a data set, as `r3env/Math-v0` reads them, and an agent: a function that solves one.

    The agent asks the policy as it would ask OpenAI's servers, at a base URL of its own. Each request is a turn of the
    episode. What the agent returns is its answer, as text that `verify` judges, or the reward. It runs in a thread.

    A subclass may override `load_queries`, `verify` and `run_agent`.
    """

    takes_completions = True

    def __init__(
        self,
        data: str | None = None,
        *,
        agent: str | Agent | None = None,
        correct_at: float = 1.0,
        instruction: str = "",
        max_turns: int = 8,
        **arguments: Any,
    ) -> None:
        """Make the environment, and import the agent.

        Args:
            data: As in `r3env/Math-v0`.
            agent: `module:function` or `path/to/file.py:function`, or the function itself, which may be a coroutine
                function. It is called with the query, the base URL of the endpoint and the model's name. It returns
                its answer as text, or the reward as a number, a bool or a `r3env.core.Verdict`.
            correct_at: A reward that is a number means a correct answer from this on.
            instruction: Text that follows the problem where an agent takes the prompt of this environment.
            max_turns: Requests that an agent may make in an episode.
            arguments: Further arguments of `r3env/Math-v0`.

        Raises:
            ValueError: A number is not in its range.
            OptionError: There is no such agent.
        """
        super().__init__(data, instruction=instruction, max_turns=max_turns, **arguments)
        if isinstance(correct_at, bool) or not isinstance(correct_at, int | float) or not math.isfinite(correct_at):
            raise OptionError("correct_at", f"must be a number, it is {correct_at!r}")
        self.correct_at = float(correct_at)
        self.agent = _agent(agent, required=type(self).run_agent is AgentEnv.run_agent)
        self._session: Session | None = None
        self._pending: Pending | None = None
        self._asked: NextTurn | None = None
        self._base_url = ""
        self._answered = 0
        self._branches = Branches()

    def verify(self, query: Query, response: str) -> Verdict:
        """Compare the agent's answer with the reference: the content of a box, else all text behind any reasoning.

        Where `answer` names another form it is read as in `r3env/Math-v0`.
        """
        visible = visible_text(response) or ""
        if self.answer == BOX and visible.strip() and not any(box in visible for box in _BOXES):
            response = f"\\boxed{{{visible}}}"
        return super().verify(query, response)

    def answer_form(self, query: Query) -> str:
        """Return what counts as the agent's answer."""
        return "text that the agent returns, or \\boxed{} in it"

    def run_agent(self, query: Query, base_url: str, model: str) -> Any:
        """Solve a query, in a separate thread; see the argument `agent` of the constructor."""
        assert self.agent is not None
        return self.agent(query, base_url, model)

    def check_concurrency(self, episodes: int) -> None:
        """Refuse a limit of open files that is too low for so many agents at once; raises ValueError."""
        check_files(episodes)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the agent, and return its first request as `VerifiableEnv.reset` does.

        Args:
            seed: As there.
            options: As there. `policy`, a `r3env.agents.types.Policy`, says how the policy can be asked.

        Raises:
            RuntimeError: The agent failed, or made no request.
        """
        options = dict(options or {})
        policy = options.pop("policy", Policy())
        observation, info = super().reset(seed=seed, options=options)
        self._start(self._current or self.query(info["uid"]), policy)
        event = self._next_event()
        if isinstance(event, Finished):
            raise RuntimeError(_why(event) or "the agent came to its end without a request to the policy")
        *before, last = event.messages
        if options.get("failed_attempt") is not None:
            return f"{observation}\n\n{last['content']}", {**info, "next_turn": event}
        return last["content"], {**info, "conversation": tuple(before), "next_turn": event}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the agent's request with a text; see `complete`."""
        if not isinstance(action, str):
            raise TypeError(f"a response must be text, it is of type {type(action).__name__}")
        return self.complete(Completion(action))

    def complete(self, completion: Completion) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the agent's request, and wait for the next one, or for its end.

        Returns:
            As `VerifiableEnv.step` does. Until the agent's end the info has `next_turn`, its next request.

        Raises:
            ResetNeeded: No episode is running.
            RuntimeError: The agent failed, or its client has given the request up and does not repeat it.
        """
        if self._pending is None or self._asked is None or self._current is None:
            raise ResetNeeded("no episode is running: call reset() before step()")
        waiting, self._pending = self._who_waits(self._pending), None
        self._branches.answered(self._asked, completion.text)
        waiting.answer(completion, self._answered)
        self._answered += 1
        event = self._next_event()
        if isinstance(event, NextTurn):
            info = self._step_info(self._current, Verdict(False, Reason.DIFFERENT))
            text = "\n\n".join(message["content"] for message in event.new)
            return text, 0.0, False, False, {**info, "next_turn": event}
        if event.error is not None:
            raise RuntimeError(_why(event))
        verdict = self._judged(event.result)
        info = self._step_info(self._current, verdict)
        return "", self.reward(self._current, verdict), True, False, info

    def abandon(self) -> None:
        """Stop waiting for the agent; its further requests are refused. May be called from another thread."""
        if self._base_url:
            endpoint().close(self._base_url)

    def close(self) -> None:
        """End the episode that runs."""
        self.abandon()
        self._pending = self._asked = None

    def _start(self, query: Query, policy: Policy) -> None:
        """Run the agent, in place of the one that runs."""
        self.close()
        self._answered, self._branches, self._session = 0, Branches(), Session(policy)
        self._base_url = endpoint().open(self._session)
        self._session.start(functools.partial(_run, self.run_agent, query, self._base_url))

    def _who_waits(self, pending: Pending) -> Pending:
        """Return the request, or its repetition by a client that gave up; an answer that none reads trains nothing."""
        assert self._session is not None
        for _ in range(self.max_turns):
            if not pending.gone():
                return pending
            event = self._session.next()
            if not isinstance(event, Pending) or event.request != pending.request:
                break
            pending = event
        self.close()  # refuses what its client still waits for
        raise RuntimeError(
            "the agent's client gave a request up before its answer came; fix: raise the client's timeout, "
            "and wait for all that is asked"
        )

    def _next_event(self) -> NextTurn | Finished:
        """Wait for a request that can be answered, or for the agent's end, after which it can ask nothing more."""
        assert self._session is not None
        while True:
            event = self._session.next()
            if isinstance(event, Finished):
                self.close()
                return event
            try:
                turn = self._branches.place(event.request)
                self._check(turn)
            except RequestError as error:
                event.refuse(error)
                continue
            self._pending, self._asked = event, turn
            return turn

    def _check(self, turn: NextTurn) -> None:
        """Raise RequestError if a request cannot be answered."""
        assert self._session is not None
        if self._answered >= self.max_turns:
            fix = "fix: ask less often, or set environment.max_turns"
            raise RequestError(f"the episode has had its {self.max_turns} requests; {fix}", code="too_many_requests")
        problem = self._session.policy.problem(turn)
        if problem is not None:
            raise RequestError(problem, "messages", code="context_length_exceeded")

    def _judged(self, result: Any) -> Verdict:
        assert self._current is not None
        if isinstance(result, Verdict):
            return result
        if isinstance(result, str):
            return self.verify(self._current, result)
        try:
            reward = float(result)
        except (TypeError, ValueError):
            raise TypeError(
                f"the agent returned {result!r:.80}; fix: return the answer as text, or the reward as a number"
            ) from None
        correct = reaches(reward, self.correct_at)
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT, reward)


def _run(agent: Agent, query: Query, base_url: str) -> Any:
    result = agent(query, base_url, MODEL)
    return run_coroutine(result) if inspect.isawaitable(result) else result


def _why(finished: Finished) -> str:
    return "" if finished.error is None else f"the agent failed: {describe(finished.error)}"


def _agent(agent: str | Agent | None, *, required: bool) -> Agent | None:
    if not isinstance(agent, str) and (agent is not None or not required):
        return agent
    try:
        (name,) = check_names(agent, "environment.options.agent=my_module:my_function")
    except ValueError as error:
        raise OptionError("agent", str(error)) from None
    return _found(name)


@functools.lru_cache
def _found(name: str) -> Agent:
    try:
        return load_function(name)
    except FunctionLoadError as error:
        raise OptionError("agent", str(error)) from None
