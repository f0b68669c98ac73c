"""An MCP server of the tests, as a user would write it: started with `python sample_server.py FILE`."""

import os
import signal
import sys
import time
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("sample")
notes: list[str] = []


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


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a") as started:
        started.write(f"{os.getpid()}\n")
    server.run(transport="stdio")
