"""A server of OpenEnv's, as a process of its own."""

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.free_ports import free_ports

SERVER = Path(__file__).parent / "openenv_server.py"


@contextlib.contextmanager
def serve(sessions, action="Guess"):
    """Yield the address of a server that holds so many sessions, and takes this class of actions."""
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, str(SERVER), str(port), str(sessions), action])
    try:
        while process.poll() is None:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        assert process.poll() is None, "the server has ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def openenv_server():
    """`with openenv_server(SESSIONS, ACTION) as url`."""
    return serve
