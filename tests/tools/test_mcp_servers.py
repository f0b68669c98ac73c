"""MCP servers as a source of tools: real ones, over stdio, that also die, hang, and end with their environments."""

import gc
import os
import sys
import time
from pathlib import Path

import pytest

from r3env.envs.tools import ToolEnv
from r3env.registry import OptionError
from r3env.tools.mcp_connection import _LastWords

from .test_tool_env import HERE, call, check_calls_at_once, results

SERVER = str(Path(__file__).with_name("sample_server.py"))


@pytest.fixture
def log(tmp_path):
    """The server's process ids, in the order of their starts."""
    file = tmp_path / "started.txt"
    return lambda: [int(line) for line in file.read_text().split()]


@pytest.fixture
def begun(tmp_path):
    """Makes an environment with the server, in which an episode has begun; closes all of them."""
    made = []

    def make(*, server=None, **options):
        servers = {
            "sample": {"command": sys.executable, "args": [SERVER, str(tmp_path / "started.txt")], **(server or {})}
        }
        made.append(ToolEnv("embedded:train", mcp_servers=servers, **{"call_timeout_s": 60.0, **options}))
        made[-1].reset(seed=0)
        return made[-1]

    yield make
    for environment in made:
        environment.close()


def has_ended(process):
    """Wait until a process is gone."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_tools_of_a_server_are_listed_and_called_beside_functions_and_it_ends_with_the_environment(begun, log):
    environment = begun(tools=f"{HERE}:multiply", server={"tools": ["add", "fail"]})
    _, info = environment.reset(seed=0)
    multiply, add, fail = info["tools"]
    assert [each["function"]["name"] for each in (multiply, add, fail)] == ["multiply", "add", "fail"]
    assert add["type"] == "function" and add["function"]["description"] == "Add two whole numbers."
    assert add["function"]["parameters"]["properties"]["a"]["type"] == "integer"
    assert results(environment, call("multiply", a=3, b=4), call("add", a=3, b=4)) == (["12", "7"], 0)
    assert results(environment, call("fail")) == (["Error executing tool fail"], 1)
    (content,), failed = results(environment, call("add", a="x"))
    assert content.startswith("Error") and "valid integer" in content and failed == 1
    assert results(environment, call("note", text="x"))[0][0].startswith("Error: there is no tool 'note'")
    (process,) = log()
    environment.close()
    assert has_ended(process)
    assert results(environment, call("add", a=1, b=2))[1] == 1, "a closed environment calls nothing"


def test_environments_share_a_server_and_the_last_one_ends_it(begun, log):
    first, second = begun(), begun()
    assert results(first, call("note", text="one")) == (["one"], 0)
    assert results(second, call("note", text="two")) == (["one\ntwo"], 0)
    first.close()
    first.close()
    assert results(second, call("add", a=1, b=2)) == (["3"], 0)
    (process,) = log()
    second.close()
    assert has_ended(process)
    assert results(begun(), call("note", text="three")) == (["three"], 0), "another server"


def test_a_server_ends_with_an_environment_that_nobody_closed(tmp_path, log):
    described = {"command": sys.executable, "args": [SERVER, str(tmp_path / "started.txt")]}
    environment = ToolEnv("embedded:train", mcp_servers={"sample": described})
    (process,) = log()
    del environment
    gc.collect()
    assert has_ended(process)


def test_a_dead_server_is_a_result_and_the_next_call_starts_another(begun, log):
    environment = begun()
    assert results(environment, call("leave")) == (["Error: leave: its server has ended"], 1)
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)
    first, second = log()
    assert first != second and has_ended(first)
    os.kill(second, 9)
    has_ended(second)
    assert results(environment, call("add", a=1, b=2)) == (["Error: add: its server has ended"], 1)
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)


def test_a_slow_tool_is_a_result_and_its_server_stays(begun, log):
    environment = begun(call_timeout_s=0.5)
    assert results(environment, call("wait", seconds=2)) == (["Error: wait did not return within 0.5 s"], 1)
    environment.call_timeout_s = 60.0
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)
    assert len(log()) == 1


def test_a_frozen_server_is_ended_and_the_next_call_starts_another(begun, log):
    environment = begun(call_timeout_s=0.5)
    assert results(environment, call("freeze")) == (["Error: freeze did not return within 0.5 s"], 1)
    environment.call_timeout_s = 60.0
    assert results(environment, call("add", a=1, b=2)) == (["3"], 0)
    first, _ = log()
    assert has_ended(first)


def test_many_threads_call_one_server_at_once(begun, log):
    check_calls_at_once([begun() for _ in range(8)])
    assert len(log()) == 1


@pytest.mark.parametrize(
    ("server", "text"),
    [
        (
            {"command": None},
            "must be a mapping with `command` or `url`, such as {command: python, args: [server.py]} or {url: ",
        ),
        ({"argv": []}, "sample: unknown key 'argv'; the nearest is 'args'"),
        ({"args": "server.py"}, "sample: args and tools must be lists"),
        ({"tools": ["ad"]}, "sample: it has no tool 'ad'; the nearest is 'add'"),
        ({"command": "no-such-program"}, "sample: no-such-program could not be started: FileNotFoundError"),
        ({"args": ["-c", "raise SystemExit('no key given')"]}, "could not be started: no key given; fix: start the"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line(begun, server, text):
    with pytest.raises(OptionError) as error:
        begun(server=server)
    assert str(error.value).startswith("mcp_servers: ") and text in str(error.value)


def test_tools_of_a_function_and_of_a_server_have_different_names(begun, log):
    with pytest.raises(OptionError, match="mcp_servers.sample: two tools are called 'fail'"):
        begun(tools=f"{HERE}:fail")
    assert has_ended(log()[0])


def test_of_what_a_server_writes_beside_the_protocol_the_end_is_kept():
    with _LastWords() as log:
        log.file.write("a line\n" * 100_000 + "\nthe last words\n")
        assert log.end().endswith("a line a line the last words") and len(log.end()) == 300
