"""The event loop of one asynchronous agent, which leaves no connection open, whatever the agent forgot to close."""

import asyncio
import weakref
from collections.abc import Awaitable
from typing import Any


def run(result: Awaitable[Any]) -> Any:
    """Wait for what an agent's coroutine returns, in a loop of its own; close its connections after it."""
    with asyncio.Runner(loop_factory=_AgentLoop) as runner:
        return runner.run(_awaited(result))


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


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
