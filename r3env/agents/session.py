"""An agent's episode between threads: requests on one side, the environment that gets them answered on the other."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from r3env.agents.types import ChatRequest, Completion, Policy, RequestError

GONE = 410  # clients do not try again after it


@dataclass(eq=False)
class Pending:
    """A request that waits for its answer.

    Args:
        request: what is asked.
        gone: whether its client waits for the answer no longer.
        answered: becomes the answer and the number of its turn, or the error of a refusal.
    """

    request: ChatRequest
    gone: Callable[[], bool]
    answered: Future[tuple[Completion, int]] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.answered.set_running_or_notify_cancel()  # whoever stops waiting does not cancel it

    def answer(self, completion: Completion, number: int) -> None:
        """Give the request this answer, unless it was refused."""
        with contextlib.suppress(InvalidStateError):
            self.answered.set_result((completion, number))

    def refuse(self, error: RequestError) -> None:
        """Make the request fail, unless it was answered."""
        with contextlib.suppress(InvalidStateError):
            self.answered.set_exception(error)


@dataclass(frozen=True)
class Finished:
    """An agent has come to its end.

    Args:
        result: what it returned.
        error: what it raised.
    """

    result: Any = None
    error: BaseException | None = None


class SessionClosed(Exception):
    """The episode is over; no one reads its answers."""


class Session:
    """The requests of one agent, and its end, in the order in which they come.

    Args:
        policy: how the policy can be asked.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._events: SimpleQueue[Pending | Finished | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending: set[Pending] = set()
        self._closed = False

    def start(self, agent: Callable[[], Any]) -> None:
        """Run the agent in a thread, which no deadline can end and no exit waits for."""
        threading.Thread(target=self._run, args=(agent,), name="agent", daemon=True).start()

    def submit(self, request: ChatRequest, gone: Callable[[], bool]) -> Pending:
        """Hand a request to the environment. It is refused when the episode ends, so no wait for it lasts longer.

        Args:
            request: what is asked.
            gone: whether its client waits no longer.

        Raises:
            RequestError: the episode is over.
        """
        pending = Pending(request, gone)
        with self._lock:
            if self._closed:
                raise _over()
            self._pending.add(pending)
        pending.answered.add_done_callback(lambda _: self._pending.discard(pending))
        self._events.put(pending)
        return pending

    def next(self) -> Pending | Finished:
        """Wait for the agent's next request, or for its end.

        Raises:
            SessionClosed: by another thread.
        """
        event = self._events.get()  # waits: `close` ends it when the episode is given up
        if event is None:
            raise SessionClosed("the episode was given up")
        return event

    def close(self) -> None:
        """Refuse requests from now on, and those that wait for an answer."""
        with self._lock:
            self._closed = True
            pending = list(self._pending)
        for each in pending:
            each.refuse(_over())
        self._events.put(None)

    def _run(self, agent: Callable[[], Any]) -> None:
        try:
            finished = Finished(agent())
        except BaseException as error:  # an agent may raise anything, and call exit()
            finished = Finished(error=error)
        self._events.put(finished)


def _over() -> RequestError:
    return RequestError("the episode is over", status=GONE, code="episode_over")
