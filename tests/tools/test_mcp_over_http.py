"""MCP servers over streamable HTTP: real ones, which also die, hang, and come back."""

import asyncio
import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from r3env.envs.tools import ToolEnv
from r3env.registry import OptionError
from r3env.tools import mcp_connection
from tests.free_ports import free_ports

from .sample_server import SECRET
from .test_tool_env import HERE, call, check_calls_at_once, results

SERVER = str(Path(__file__).with_name("sample_server.py"))


class Running:
    """A server process of the test's own, always at the same port."""

    def __init__(self, folder):
        self.file, (self.port,) = folder / "port.txt", free_ports(1)
        self.start()

    def start(self):
        self.file.unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, SERVER, str(self.file), str(self.port)])
        while not self.file.exists() or not self.file.read_text().endswith("\n"):
            assert self.process.poll() is None, "the server did not start"
            time.sleep(0.02)
        self.port = int(self.file.read_text())

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/mcp"

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    running = Running(tmp_path)
    yield running
    running.end()


@pytest.fixture
def begun(server):
    """Makes an environment with the server, in which an episode has begun; closes all of them."""
    made = []

    def make(*, described=None, **options):
        servers = {"sample": {"url": server.url, "headers": {"Authorization": SECRET}} | (described or {})}
        made.append(ToolEnv("embedded:train", mcp_servers=servers, **{"call_timeout_s": 60.0, **options}))
        made[-1].reset(seed=0)
        return made[-1]

    yield make
    for environment in made:
        environment.close()


def test_tools_behind_a_url_are_listed_and_called_beside_functions(begun, server):
    environment = begun(tools=f"{HERE}:multiply", described={"tools": ["add", "fail"]})
    assert [each["function"]["name"] for each in environment.tools] == ["multiply", "add", "fail"]
    assert results(environment, call("multiply", a=3, b=4), call("add", a=3, b=4)) == (["12", "7"], 0)
    assert results(environment, call("fail")) == (["Error executing tool fail"], 1)
    environment.close()
    assert server.process.poll() is None, "a server that was not started here goes on"
    assert results(environment, call("add", a=1, b=2))[1] == 1, "a closed environment calls nothing"


def test_a_server_that_dies_is_a_result_and_is_found_again_when_it_is_back(begun, server):
    environment = begun()
    assert results(environment, call("leave")) == (["Error: leave: its server has ended"], 1)
    server.process.wait()
    ((text,), failed) = results(environment, call("add", a=1, b=2))
    assert failed == 1 and text.startswith(f"Error: add: its server is gone, and {server.url} could not be reached: ")
    server.start()
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)
    server.end()
    server.start()
    answers = [results(environment, call("add", a=1, b=2)) for _ in range(2)]
    assert answers[1] == (["3"], 0), "of a server that was started again between two calls, one call may fail"


def test_a_session_that_the_server_has_forgotten_is_begun_again(begun, server, monkeypatch):
    """As servers of the protocol before 2026 have them."""
    import mcp

    monkeypatch.setattr(mcp, "Client", functools.partial(mcp.Client, mode="legacy"))
    environment = begun()
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)
    server.end()
    server.start()
    assert results(environment, call("add", a=1, b=2)) == (["Error: add: its server has ended"], 1)
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)


def test_a_connection_that_breaks_while_it_is_given_up_leaves_results_and_no_traceback(
    begun, server, monkeypatch, caplog
):
    """Requests that fail at that moment make the client end with an error, in a task that nobody waits for."""

    @contextlib.asynccontextmanager
    async def breaking(*arguments):
        async with connected(*arguments) as client:
            try:
                yield client
            except asyncio.CancelledError:
                raise ExceptionGroup("unhandled errors in a TaskGroup", [ConnectionError("it is gone")]) from None

    connected = mcp_connection.connected
    monkeypatch.setattr(mcp_connection, "connected", breaking)
    environment = begun(call_timeout_s=0.5)
    assert results(environment, call("freeze")) == (["Error: freeze did not return within 0.5 s"], 1)
    deadline = time.monotonic() + 60
    while serving := [task for task in asyncio.all_tasks(mcp_connection._loop()) if "_serve" in repr(task)]:
        assert time.monotonic() < deadline, f"the connection is not given up: {serving}"
        time.sleep(0.02)
    gc.collect()
    assert not [record.message for record in caplog.records if record.name == "asyncio"]


def test_a_slow_tool_is_a_result_and_a_frozen_server_too_until_it_thaws(begun, server):
    environment = begun(call_timeout_s=0.5)
    assert results(environment, call("wait", seconds=1)) == (["Error: wait did not return within 0.5 s"], 1)
    environment.call_timeout_s = 60.0
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)
    environment.call_timeout_s = 0.5
    assert results(environment, call("freeze")) == (["Error: freeze did not return within 0.5 s"], 1)
    gone = "Error: add: its server is gone, and it was not ready after 0.5 s"
    assert results(environment, call("add", a=1, b=2)) == ([gone], 1)
    os.kill(server.process.pid, signal.SIGCONT)
    environment.call_timeout_s = 60.0
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)


def test_many_threads_call_one_server_at_once(begun):
    check_calls_at_once([begun() for _ in range(8)])


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ({"url": None}, "must be a mapping with `command` or `url`, such as {command: "),
        ({"command": "python"}, "must be a mapping with `command` or `url`, such as {command: "),
        ({"args": ["x"]}, "sample: unknown key 'args'; the nearest is "),
        ({"url": "localhost:8000"}, "sample: url must begin with http:// or https://"),
        ({"headers": ["x"]}, "sample: headers must be a mapping"),
        ({"headers": {}}, "/mcp could not be reached: "),
        ({"url": "http://127.0.0.1:9/mcp"}, "http://127.0.0.1:9/mcp could not be reached: ConnectError"),
        ({"tools": ["ad"]}, "sample: it has no tool 'ad'; the nearest is 'add'"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line(begun, described, text):
    with pytest.raises(OptionError) as error:
        begun(described=described)
    assert str(error.value).startswith("mcp_servers: ") and text in str(error.value)
    assert "\n" not in str(error.value) and SECRET not in str(error.value)
