"""An HTTP/1.1 server whose clients hold little until they have shown a key.

`h11` reads the protocol. The limits are here, as no server at hand has them: aiohttp 3.14 and uvicorn 0.54 keep whoever
sends nothing, half a head or half a body for as long as it stays, and aiohttp keeps any number of them.
"""

import asyncio
import contextlib
import errno
import functools
import json
import logging
import math
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

import h11

from r3env.agents.types import RequestError

# A connection that has waited for less is not closed for others: a request may be on the way.
_GRACE_S = 1.0
_PAUSE_S = 0.01
_PIECE = 64 << 10
# What is read after a response that ends a connection: a client that is still sending would miss it.
_LINGER_BYTES, _LINGER_S = 1 << 20, 2.0
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

_logger = logging.getLogger(__name__)

# Returns the type and the bytes of the response to a body, whose client may have gone meanwhile.
Respond = Callable[[bytes, Callable[[], bool]], Awaitable[tuple[str, bytes]]]
# Finds what responds to a method and a target, before the body is read; raises RequestError if they have no key.
Find = Callable[[str, str], Respond]


@dataclass(frozen=True)
class Limits:
    """What clients may hold; beyond it they get a status of 4xx or 503, and their connection is closed.

    Args:
        head_bytes: of a request's head. A client without a key holds twice as much at most.
        head_s: from the connection to the end of the first head; and for room among the known ones.
        body_bytes: of a request's body.
        body_s: for a body, and for a response.
        idle_s: from a response to the end of the next head.
        strangers: connections that have shown no key. For one more, the oldest is closed.
        known: connections that have shown one. One more waits until another is closed, then it is refused. The longest
            idle one is closed for it.
    """

    head_bytes: int = 16 << 10
    head_s: float = 10.0
    body_bytes: int = 16 << 20
    body_s: float = 60.0
    idle_s: float = 300.0
    strangers: int = 1024
    known: int = 4096


class Server:
    """Serves connections in the event loop that runs `serve`."""

    def __init__(self, find: Find, limits: Limits) -> None:
        self._find = find
        self._limits = limits
        self._strangers: dict[socket.socket, float] = {}  # when they connected, the oldest first
        self._known: set[socket.socket] = set()
        self._idle: dict[socket.socket, float] = {}  # of the known ones: since when, the longest idle first
        self._warned = False

    async def serve(self, listener: socket.socket) -> None:
        """Serve whoever connects to a socket that does not block, until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as connections:
            while True:
                await self._wait_for_room()
                try:
                    client, _ = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno in _NO_FILES:
                        self._free_file()
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self._strangers[client] = loop.time()
                connections.create_task(self._converse(client))
                await asyncio.sleep(0)  # its request may be there, and is read before others connect

    async def _wait_for_room(self) -> None:
        """Close the oldest strangers; wait while all of them have just come."""
        loop = asyncio.get_running_loop()
        while len(self._strangers) >= self._limits.strangers:
            oldest, since = next(iter(self._strangers.items()))
            if loop.time() < since + _GRACE_S:
                await asyncio.sleep(_PAUSE_S)
                continue
            with contextlib.suppress(OSError):
                oldest.send(_TOO_MANY)
            self._dismiss(oldest)

    def _free_file(self) -> None:
        """Close a connection that waits for its client: this process may open no more files."""
        if not self._warned:
            _logger.warning("the agents have more connections than this process may have files open; fix: ulimit -n")
        self._warned = True
        if waiting := next(iter(self._strangers or self._idle), None):
            self._dismiss(waiting)

    def _dismiss(self, client: socket.socket) -> None:
        """End a connection that waits for its client; the task that reads from it closes it."""
        self._strangers.pop(client, None)
        self._idle.pop(client, None)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    async def _converse(self, client: socket.socket) -> None:
        """Answer the requests of a connection, then close it."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        with client, contextlib.suppress(OSError, h11.ProtocolError):
            try:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while await self._exchange(client, http):
                    http.start_next_cycle()
                await _linger(client)
            finally:
                self._strangers.pop(client, None)
                self._known.discard(client)

    async def _exchange(self, client: socket.socket, http: h11.Connection) -> bool:
        """Answer a request; return whether there may be another one."""
        try:
            request = await self._next_request(client, http)
            if request is None:
                return False
            respond = self._find(request.method.decode(), request.target.decode())
            await self._know(client)
            body = await self._body(client, http, request)
            status, (kind, data) = 200, await respond(body, functools.partial(_has_gone, client))
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise  # the client is gone
            refused = _refusal(error)
            status, kind, data = refused.status, "application/json", json.dumps(refused.body).encode()
        headers = [("Content-Type", kind), ("Content-Length", str(len(data)))]
        headers += [("Connection", "close")] * (http.their_state is not h11.DONE)  # its body was not read
        headers += [("Retry-After", "1")] * (status == 503)
        head = http.send(h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=headers)) or b""
        http.send(h11.Data(data=data))
        http.send(h11.EndOfMessage())
        async with asyncio.timeout(self._limits.body_s):
            await asyncio.get_running_loop().sock_sendall(client, head + data)
        return http.our_state is h11.DONE is http.their_state

    async def _next_request(self, client: socket.socket, http: h11.Connection) -> h11.Request | None:
        """Wait for the head of a request; None: there is none."""
        limits, known = self._limits, client in self._known
        now = asyncio.get_running_loop().time()
        until = now + (limits.idle_s if known else limits.head_s)
        if known:
            self._idle[client] = now
        try:
            event = await _next_event(client, http, until, limits.head_bytes)
        except TimeoutError:
            if known and not http.trailing_data[0]:
                return None  # without a response, which would be taken for that to its next request
            raise
        finally:
            self._idle.pop(client, None)
        return event if isinstance(event, h11.Request) else None

    async def _know(self, client: socket.socket) -> None:
        """Count a client among those that have shown a key; wait for room, which others leave when they close theirs.

        Raises:
            RequestError: they do not.
        """
        if client in self._known:
            return
        self._strangers.pop(client, None)
        now = asyncio.get_running_loop().time
        until = now() + self._limits.head_s
        while len(self._known) >= self._limits.known:
            oldest, since = next(iter(self._idle.items()), (client, math.inf))
            if now() >= since + _GRACE_S:
                self._dismiss(oldest)
            elif now() >= until:
                message = f"agents have {len(self._known)} connections, the most that this process has open files for"
                raise RequestError(f"{message}; fix: close them, or ulimit -n", status=503)
            await asyncio.sleep(_PAUSE_S)
        self._known.add(client)

    async def _body(self, client: socket.socket, http: h11.Connection, request: h11.Request) -> bytes:
        body, most = bytearray(), self._limits.body_bytes
        too_large = RequestError(f"the body has more than {most} bytes", status=413)
        if int(dict(request.headers).get(b"content-length", 0)) > most:
            raise too_large
        loop = asyncio.get_running_loop()
        until = loop.time() + self._limits.body_s
        if http.they_are_waiting_for_100_continue:
            await loop.sock_sendall(client, http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        while isinstance(event := await _next_event(client, http, until, _PIECE), h11.Data):
            body += event.data
            if len(body) > most:
                raise too_large
        return bytes(body)


async def _next_event(client: socket.socket, http: h11.Connection, until: float, size: int) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await _receive(client, until, size))
    return event


async def _receive(client: socket.socket, until: float, size: int) -> bytes:
    """Read what has arrived, or wait for it; empty at the end.

    Raises:
        TimeoutError: nothing arrived until then. What did is read after it, too: this process may have been stopped.
    """
    loop = asyncio.get_running_loop()
    while True:
        late = loop.time() >= until
        try:
            return client.recv(size)  # waits: the socket does not block
        except BlockingIOError:
            if late:
                raise TimeoutError from None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await _readable(client)


async def _readable(client: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(client, ready.set)
    try:
        await ready.wait()  # waits: its caller has a limit
    finally:
        loop.remove_reader(client)


def _has_gone(client: socket.socket) -> bool:
    """Return whether a client has closed its connection; called by any thread."""
    try:
        return not client.recv(1, socket.MSG_PEEK)  # waits: the socket does not block
    except BlockingIOError:
        return False
    except OSError:
        return True


async def _linger(client: socket.socket) -> None:
    """Read on for a while after the last response: a client that is still sending would miss it."""
    client.shutdown(socket.SHUT_WR)
    left, until = _LINGER_BYTES, asyncio.get_running_loop().time() + _LINGER_S
    while left > 0 and (size := len(await _receive(client, until, _PIECE))):
        left -= size


def _refusal(error: Exception) -> RequestError:
    """Return what a client gets to know of an error."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, TimeoutError):
        return RequestError("the request did not arrive in time", status=408)
    if isinstance(error, h11.RemoteProtocolError):
        return RequestError("this is no request of HTTP/1.1, or its head is too long", status=error.error_status_hint)
    return RequestError(f"the endpoint failed: {type(error).__name__}: {error}", status=500)
