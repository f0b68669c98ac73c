"""The chat endpoint of a process: HTTP on localhost, one path for each episode."""

import asyncio
import functools
import json
import resource
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from r3env.agents.http_server import Limits, Respond, Server
from r3env.agents.protocol import MODEL, completion_body, model_body, models_body, read_request
from r3env.agents.session import GONE, Session
from r3env.agents.types import RequestError


def as_events(body: Mapping[str, Any], *, usage: bool) -> bytes:
    """Return the events of an answer.

    Args:
        body: what the request would be answered with at once.
        usage: whether the counts of tokens come last, as `stream_options.include_usage` asks.
    """
    events = [json.dumps(chunk) for chunk in _chunks(body, usage)]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def _chunks(body: Mapping[str, Any], usage: bool) -> Iterator[dict[str, Any]]:
    (choice,) = body["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(delta["tool_calls"])]
    message = {name: value for name, value in choice.items() if name != "message"}
    message |= {"delta": delta, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"], "logprobs": None}
    common = {name: value for name, value in body.items() if name not in ("choices", "usage")}
    common["object"] = "chat.completion.chunk"
    yield {**common, "choices": [message]}
    common.pop("prompt_token_ids", None)
    yield {**common, "choices": [end]}
    if usage:
        yield {**common, "choices": [], "usage": body["usage"]}


_BACKLOG = 1024  # hundreds of agents may connect at once
# Open files of the rest of the process; and those of an agent: both ends of its connection, and a stranger's.
_OTHER_FILES, _FILES = 256, 3


class Endpoint:
    """Serves any number of sessions under secret paths, in a thread that ends with the process.

    Args:
        limits: of its connections; None: those that the limit of open files leaves room for.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._sessions: dict[str, Session] = {}
        listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        listener.setblocking(False)
        self._address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = Server(self._find, limits or connection_limits())
        threading.Thread(target=_run, args=(server, listener), name="endpoint", daemon=True).start()

    def open(self, session: Session) -> str:
        """Serve a session; returns the base URL that its agent gets, which ends in `/v1`."""
        key = secrets.token_urlsafe(16)
        self._sessions[key] = session
        return f"{self._address}/{key}/v1"

    def close(self, base_url: str) -> None:
        """Serve a session no longer; an unknown one is no error."""
        session = self._sessions.pop(base_url.split("/")[-2], None)
        if session is not None:
            session.close()

    def _find(self, method: str, target: str) -> Respond:
        key, _, path = target.partition("?")[0].removeprefix("/").partition("/")
        session = self._sessions.get(key)
        if session is None:
            raise RequestError("there is no such episode, or it is over", status=GONE, code="episode_over")
        if (method, path) == ("POST", "v1/chat/completions"):
            return functools.partial(_complete, session)
        if (method, path) == ("GET", "v1/models"):
            return functools.partial(_show, models_body())
        if (method, path) == ("GET", f"v1/models/{MODEL}"):
            return functools.partial(_show, model_body())
        fix = "fix: POST /v1/chat/completions or GET /v1/models"
        raise RequestError(f"there is no {method} /{path}; {fix}", status=404)


_starting = threading.Lock()


def endpoint() -> Endpoint:
    """Return the endpoint of this process, started when it is first needed."""
    with _starting:
        return _only_endpoint()


@functools.lru_cache(1)
def _only_endpoint() -> Endpoint:
    return Endpoint()


def connection_limits() -> Limits:
    """Return how many connections this process has files for; it may open as many files from now on as these need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (most := min(hard, _OTHER_FILES + _FILES * Limits.known)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    room = max(1, (hard - _OTHER_FILES) // _FILES)
    return Limits(strangers=min(Limits.strangers, room), known=min(Limits.known, room))


def check_files(agents: int) -> None:
    """Check that a process may open the files that so many agents at once need.

    Raises:
        ValueError: one line that says how many these are.
    """
    needed, (_, hard) = _OTHER_FILES + _FILES * agents, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        raise ValueError(
            f"{agents} agents at once need {needed} open files, and a process may have {hard}; "
            f"fix: a hard limit of {needed} or more (ulimit -n), or a smaller env_runners.max_num_seqs"
        )


def _run(server: Server, listener: socket.socket) -> None:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(server.serve(listener))


async def _show(body: dict[str, Any], *_: object) -> tuple[str, bytes]:
    return "application/json", json.dumps(body).encode()


async def _complete(session: Session, body: bytes, gone: Callable[[], bool]) -> tuple[str, bytes]:
    request = read_request(body, session.policy)
    completion, number = await asyncio.wrap_future(session.submit(request, gone).answered)
    answer = completion_body(request, completion, number)
    if request.stream:
        return "text/event-stream", as_events(answer, usage=request.stream_usage)
    return await _show(answer)
