"""Reach an MCP server: a program that is started and speaks over stdio, or a URL over streamable HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

_CONNECT_LIMIT_S = 30.0


@dataclass(frozen=True)
class ServerCommand:
    """How to start a server.

    Args:
        command: the program.
        args: of the program.
        env: variables beside the few that servers get anyway (HOME, PATH, USER and the like).
        cwd: its folder; empty: this process's.
    """

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""

    def __str__(self) -> str:
        return self.command


@dataclass(frozen=True)
class ServerUrl:
    """Where a server runs that somebody else has started.

    Args:
        url: of its endpoint, such as `http://127.0.0.1:8000/mcp`.
        headers: of every request; they may hold a secret.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.url


Address = ServerCommand | ServerUrl


@asynccontextmanager
async def connected(address: Address, log: TextIO) -> AsyncIterator[Any]:
    """Connect to a server, after starting it if it is a program; yield the client of the package `mcp`.

    Args:
        address: of the server.
        log: what a program writes beside the protocol, with a file descriptor.
    """
    from mcp import Client, StdioServerParameters, stdio_client

    if isinstance(address, ServerCommand):
        parameters = StdioServerParameters(
            command=address.command, args=list(address.args), env=dict(address.env), cwd=address.cwd or None
        )
        async with Client(stdio_client(parameters, errlog=log)) as client:
            yield client
        return
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    # A call has a timeout of its own, and every thread of the process may have one under way.
    timeout = httpx2.Timeout(_CONNECT_LIMIT_S, read=None, pool=None)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx2.AsyncClient(headers=dict(address.headers), timeout=timeout, limits=limits) as http,
        Client(streamable_http_client(address.url, http_client=http)) as client,
    ):
        yield client
