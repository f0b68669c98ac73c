"""An MCP server of the tests, as a user would write it: `python sample_server.py FILE` speaks over stdio.

With a port behind the file it speaks over streamable HTTP, to those who know the secret.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("sample")
notes: list[str] = []
SECRET = "Bearer 12"


@server.tool()
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool()
def note(text: str) -> list[str]:
    """Note a text, and read all notes."""
    notes.append(text)
    return notes


@server.tool()
def fail() -> str:
    """Raise an error."""
    raise ValueError("nothing\nto see")


@server.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "done"


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def freeze() -> str:
    """Stop the server in the middle of everything."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return "awake"


def serve(port: int, started: Path) -> None:
    """Serve at a port, 0 for any, and write it down once connections are taken."""
    import uvicorn

    app = server.streamable_http_app()

    async def guarded(scope, receive, send):
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != SECRET.encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    listening = socket.create_server(("127.0.0.1", port))
    with started.open("a") as file:
        file.write(f"{listening.getsockname()[1]}\n")
    uvicorn.Server(uvicorn.Config(guarded, log_level="critical")).run(sockets=[listening])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve(int(sys.argv[2]), Path(sys.argv[1]))
    else:
        with Path(sys.argv[1]).open("a") as started:
            started.write(f"{os.getpid()}\n")
        server.run(transport="stdio")
