"""The connection to one MCP server, by the package `mcp`, for any number of threads.

A server is shared by all environments of a process that name it in the same way: it is started, or connected to, when
the first of them is made, and given up with the last one. One that has died, or that answers nothing any more, is
started or connected to again by the next call.
"""

import asyncio
import concurrent.futures
import functools
import json
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from r3env.tools.calls import ToolCall
from r3env.tools.mcp_transports import Address, ServerCommand, ServerUrl, connected
from r3env.tools.results import Schema, ToolResult, failure, timed_out

_START_LIMIT_S, _CLOSING_LIMIT_S = 60.0, 30.0
_GRACE_S = 5.0
_LAST_WORDS = 300  # characters
_LOG_LIMIT_S = 1.0
_GONE = -32000  # the protocol's code of a connection that is closed
_TIMEOUT = -32001  # and of an answer that does not come
_NO_SESSION = -32600  # over HTTP, of a session that the server does not know: it has been started again

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class ServerStartError(Exception):
    """A server that could not be started or reached; the message is one line."""


class Server:
    """A server and the connection to it, for any number of threads.

    Args:
        address: how to start it, or where it runs.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.RLock()  # an environment may be closed by garbage collection, in the middle of anything
        self._schemas: list[Schema] | None = None
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._ended: concurrent.futures.Future[None] | None = None

    def schemas(self) -> list[Schema]:
        """Return its tools' names, descriptions and arguments; raises ServerStartError if it cannot be started."""
        with self._lock:
            self._require_client(_START_LIMIT_S)
            assert self._schemas is not None
            return self._schemas

    def call(self, call: ToolCall, timeout_s: float) -> ToolResult:
        """Call a tool; return any error as the result."""
        from mcp import MCPError

        client = None
        try:
            client = self._client_within(_START_LIMIT_S if isinstance(self.address, ServerCommand) else timeout_s)
            request = client.call_tool(call.name, dict(call.arguments), read_timeout_seconds=timeout_s)
            return _result(_run(request, timeout_s + _GRACE_S))
        except ServerStartError as error:
            return failure(f"{call.name}: its server is gone, and {error}")
        except (MCPError, TimeoutError) as error:
            code = getattr(error, "code", _TIMEOUT)
            if code == _TIMEOUT:
                if not self._answers(client, max(timeout_s, _GRACE_S)):
                    self._drop(client)
                return timed_out(call.name, timeout_s)
            if code == _GONE or (code == _NO_SESSION and isinstance(self.address, ServerUrl)):
                self._drop(client)
                return failure(f"{call.name}: its server has ended")
            return failure(f"{call.name}: {error}")
        except Exception as error:  # a server may answer anything
            self._drop(client)
            return failure(f"{call.name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End the server: politely, then by force."""
        with self._lock:
            self._end()

    def _client_within(self, limit_s: float) -> Any:
        """Return a client; may wait twice as long, for another thread that starts the server as well."""
        if not self._lock.acquire(timeout=limit_s):
            raise ServerStartError(f"it was not ready after {limit_s:g} s")
        try:
            return self._require_client(limit_s)
        finally:
            self._lock.release()

    def _require_client(self, limit_s: float) -> Any:
        if self._client is not None:
            return self._client
        ready: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._ended = asyncio.run_coroutine_threadsafe(self._serve(ready), _loop())
        try:
            self._client, self._schemas = ready.result(limit_s)
        except BaseException as error:
            self._ended.cancel()
            if isinstance(error, TimeoutError):
                raise ServerStartError(f"it was not ready after {limit_s:g} s") from None
            raise
        return self._client

    async def _serve(self, ready: "concurrent.futures.Future[Any]") -> None:
        """Keep the connection open until it is to be closed: who opens it has to close it, in the same task."""
        self._stop = asyncio.Event()
        with _LastWords() as log:
            try:
                async with connected(self.address, log.file) as client:
                    ready.set_result((client, await _list_tools(client)))
                    await self._stop.wait()  # waits: until `_end`, which cancels it
            except BaseException as error:
                if ready.done():  # the connection broke: the next call finds out, and nobody waits for this task
                    if isinstance(error, asyncio.CancelledError):
                        raise
                    _logger.debug("the connection to %s broke: %s", self.address, _why(error, log))
                    return
                failed = "started" if isinstance(self.address, ServerCommand) else "reached"
                ready.set_exception(ServerStartError(f"{self.address} could not be {failed}: {_why(error, log)}"))

    def _answers(self, client: Any, timeout_s: float) -> bool:
        """Return whether the server answers a ping, be it that it knows none."""
        from mcp import MCPError

        try:
            _run(client.session.send_ping(), timeout_s)
        except MCPError as error:
            return error.code not in (_GONE, _TIMEOUT)
        except Exception:
            return False
        return True

    def _drop(self, client: Any) -> None:
        """End a server that is of no more use; the next call starts another, or connects again."""
        with self._lock:
            if client is not None and client is self._client:  # else another thread has done that
                self._end(lost=True)

    def _end(self, *, lost: bool = False) -> None:
        ended, self._client, self._ended = self._ended, None, None
        if ended is None or self._stop is None:
            return
        if lost and isinstance(self.address, ServerUrl):  # which would hear no farewell
            ended.cancel()
            return
        _loop().call_soon_threadsafe(self._stop.set)
        if asyncio._get_running_loop() is None:  # else this is the thread that ends it
            concurrent.futures.wait([ended], _CLOSING_LIMIT_S if isinstance(self.address, ServerCommand) else _GRACE_S)
            ended.cancel()


async def _list_tools(client: Any) -> list[Schema]:
    found: list[Schema] = []
    page = None
    while True:
        listed = await client.list_tools(cursor=page)
        for tool in listed.tools:
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            found.append({"type": "function", "function": function})
        page = listed.next_cursor
        if page is None:
            return found


def _result(answered: Any) -> ToolResult:
    """Return what a server answered as text: its text blocks, and of others what they are."""
    blocks = [block.text if block.type == "text" else f"[{block.type}]" for block in answered.content]
    text = "\n".join(blocks)
    if not blocks and answered.structured_content is not None:
        text = json.dumps(answered.structured_content, ensure_ascii=False)
    if answered.is_error and not text.startswith("Error"):
        return failure(text)
    return ToolResult(text, answered.is_error)


class _LastWords:
    """A file of which the end is kept: a server may write beside the protocol as much as it likes."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.file = os.fdopen(writing, "w")
        self._kept = b""
        self._reader = threading.Thread(target=self._read, args=(reading,), name="mcp-log", daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def end(self) -> str:
        """Return in one line what was written last; nothing of this process may be written any more."""
        self.file.close()
        self._reader.join(_LOG_LIMIT_S)  # a process that the server has started may hold the file open
        return " ".join(self._kept.decode(errors="replace").split())[-_LAST_WORDS:]

    def _read(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as log:
            while written := log.read(1 << 16):  # waits: until the server and this process have closed the file
                self._kept = (self._kept + written)[-8 * _LAST_WORDS :]


def _why(error: BaseException, log: _LastWords) -> str:
    """In one line why a server did not start: what it wrote last, else what was raised."""
    said = log.end()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return said or f"{type(error).__name__}: {' '.join(str(error).split())}"


def _run(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Wait in this thread for what the connections' thread does."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    return _loop_of(os.getpid())  # a forked process has none of the threads of the one that it was forked from


@functools.lru_cache(maxsize=1)
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of the thread that talks to all servers of a process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    return loop


_servers: dict[tuple[int, Address], tuple[Server, int]] = {}
_servers_lock = threading.RLock()


def acquire(address: Address) -> Server:
    """Return the server of this process with this command or address, with one user more."""
    with _servers_lock:
        server, users = _servers.get((os.getpid(), address), (None, 0))
        server = server or Server(address)
        _servers[os.getpid(), address] = server, users + 1
        return server


def release(server: Server) -> None:
    """Count one user less; the last one ends the server."""
    with _servers_lock:
        key = (os.getpid(), server.address)
        known, users = _servers.get(key, (None, 0))
        if known is not server:
            return
        if users > 1:
            _servers[key] = server, users - 1
            return
        del _servers[key]
    server.close()
