"""MCP servers as a source of tools: programs that are started here, or URLs; see `mcp_connection.py`."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from r3env.registry import OptionError, UnreachableError
from r3env.spelling import nearest
from r3env.tools.calls import ToolCall
from r3env.tools.mcp_connection import Server, ServerStartError, acquire, release
from r3env.tools.mcp_transports import Address, ServerCommand, ServerUrl
from r3env.tools.results import Schema, ToolResult, failure

_PROGRAM_KEYS = ("command", "args", "env", "cwd", "tools")
_URL_KEYS = ("url", "headers", "tools")


class McpTools:
    """The tools of one server, see `ToolSource`."""

    def __init__(self, name: str, described: Mapping[str, Any]) -> None:
        """Start the server or connect to it, unless that has been done, and list its tools.

        Args:
            name: of the server, for messages.
            described: `command`, and if wanted `args`, `env`, `cwd`; or `url`, and if wanted `headers`. Of both
                `tools`, the names of those to offer.

        Raises:
            UnreachableError: It cannot be started or reached.
            OptionError: It is described in another way, or lacks one of the tools.
        """
        address, wanted = _read(name, described)
        _check_installed()
        self._server: Server | None = acquire(address)
        try:
            self.schemas = _chosen(name, self._server.schemas(), wanted)
        except ServerStartError as error:
            self.close()
            by_hand = "start the command by hand"
            fix = by_hand if isinstance(address, ServerCommand) else "start the server there, or correct the url"
            raise UnreachableError("mcp_servers", f"{name}: {error}; fix: {fix}") from None
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


def _read(name: str, described: Mapping[str, Any]) -> tuple[Address, Sequence[str] | None]:
    """Read the description of a server; raises OptionError if it is another."""
    program, url = "{command: python, args: [server.py]}", "{url: 'http://127.0.0.1:8000/mcp'}"
    found = [key for key in ("command", "url") if isinstance(described, Mapping) and described.get(key) is not None]
    if len(found) != 1 or not isinstance(described[found[0]], str):
        text = f"must be a mapping with `command` or `url`, such as {program} or {url}"
        raise OptionError("mcp_servers", f"{name}: {text}")
    known = _URL_KEYS if found == ["url"] else _PROGRAM_KEYS
    for key in described:
        if key not in known and described[key] is not None:
            raise OptionError("mcp_servers", f"{name}: unknown key {key!r}; the nearest is {nearest(key, known)}")
    args, wanted = described.get("args") or [], described.get("tools")
    if not isinstance(args, list | tuple) or not isinstance(wanted, list | tuple | None):
        raise OptionError("mcp_servers", f"{name}: args and tools must be lists, such as {program}")
    if found == ["url"]:
        if not described["url"].startswith(("http://", "https://")):
            raise OptionError("mcp_servers", f"{name}: url must begin with http:// or https://, such as {url}")
        return ServerUrl(described["url"], _pairs(name, "headers", described)), wanted
    cwd = os.path.abspath(os.path.expanduser(str(described.get("cwd") or ".")))
    return ServerCommand(described["command"], tuple(map(str, args)), _pairs(name, "env", described), cwd), wanted


def _pairs(name: str, key: str, described: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    values = described.get(key) or {}
    if not isinstance(values, Mapping):
        raise OptionError("mcp_servers", f"{name}: {key} must be a mapping of names to values")
    return tuple(sorted((str(name), str(value)) for name, value in values.items()))


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
