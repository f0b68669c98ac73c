"""MCP servers as a source of tools: programs that are started here, and speak over stdio; see `mcp_connection.py`."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from r3env.registry import OptionError
from r3env.spelling import nearest
from r3env.tools.calls import ToolCall
from r3env.tools.mcp_connection import Server, ServerCommand, ServerStartError, acquire, release
from r3env.tools.results import Schema, ToolResult, failure

_KEYS = ("command", "args", "env", "cwd", "tools")


class McpTools:
    """The tools of one server, see `ToolSource`."""

    def __init__(self, name: str, described: Mapping[str, Any]) -> None:
        """Start the server unless it runs, and list its tools.

        Args:
            name: of the server, for messages.
            described: `command`, and if wanted `args`, `env`, `cwd`, and `tools`, the names of those to offer.

        Raises:
            OptionError: It is described in another way, cannot be started, or lacks one of the tools.
        """
        command, wanted = _read(name, described)
        _check_installed()
        self._server: Server | None = acquire(command)
        try:
            self.schemas = _chosen(name, self._server.schemas(), wanted)
        except ServerStartError as error:
            self.close()
            raise OptionError("mcp_servers", f"{name}: {error}; fix: start the command by hand") from None
        except OptionError:
            self.close()
            raise

    def call(self, call: ToolCall, *, timeout_s: float, most: int) -> ToolResult:
        """Call a tool of the server, see `ToolSource.call`."""
        if self._server is None:
            return failure(f"{call.name}: its server has been given up")
        return self._server.call(call, timeout_s).shortened(most)

    def close(self) -> None:
        """Give the server up; it ends if no other environment uses it."""
        server, self._server = self._server, None
        if server is not None:
            release(server)


def _read(name: str, described: Mapping[str, Any]) -> tuple[ServerCommand, Sequence[str] | None]:
    """Read the description of a server; raises OptionError if it is another."""
    example = "{command: python, args: [server.py]}"
    if not isinstance(described, Mapping) or not isinstance(described.get("command"), str):
        raise OptionError("mcp_servers", f"{name}: must be a mapping with `command`, such as {example}")
    for key in described:
        if key not in _KEYS:
            raise OptionError("mcp_servers", f"{name}: unknown key {key!r}; the nearest is {nearest(key, _KEYS)}")
    args, wanted = described.get("args") or [], described.get("tools")
    if not isinstance(args, list | tuple) or not isinstance(wanted, list | tuple | None):
        raise OptionError("mcp_servers", f"{name}: args and tools must be lists, such as {example}")
    env = described.get("env") or {}
    if not isinstance(env, Mapping):
        raise OptionError("mcp_servers", f"{name}: env must be a mapping of names to values")
    variables = tuple(sorted((str(key), str(value)) for key, value in env.items()))
    cwd = os.path.abspath(os.path.expanduser(str(described.get("cwd") or ".")))
    return ServerCommand(described["command"], tuple(map(str, args)), variables, cwd), wanted


def _chosen(name: str, schemas: list[Schema], wanted: Sequence[str] | None) -> list[Schema]:
    by_name = {schema["function"]["name"]: schema for schema in schemas}
    for tool in wanted or ():
        if tool not in by_name:
            raise OptionError(
                "mcp_servers", f"{name}: it has no tool {tool!r}; the nearest is {nearest(tool, by_name)}"
            )
    return schemas if wanted is None else [by_name[tool] for tool in wanted]


def _check_installed() -> None:
    try:
        import mcp  # noqa: F401  an extra
    except ImportError as error:
        raise OptionError("mcp_servers", f"mcp cannot be imported ({error}): pip install -e '.[mcp]'") from error
