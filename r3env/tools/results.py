"""The result of a call: text for the model, whether the tool worked or not."""

import json
from dataclasses import dataclass
from typing import Any, Protocol

from r3env.tools.calls import ToolCall

Schema = dict[str, Any]


@dataclass(frozen=True)
class ToolResult:
    """The result of a call.

    Args:
        text: for the model.
        failed: whether the tool gave no result; the text then says why.
    """

    text: str
    failed: bool = False

    def shortened(self, most: int) -> "ToolResult":
        """Return the result with at most this many characters, and how many were left out."""
        return ToolResult(shorten(self.text, most), self.failed)


class ToolSource(Protocol):
    """A source of tools, which also calls them."""

    @property
    def schemas(self) -> list[Schema]:
        """Each tool's name, description and arguments in the form of chat templates: `{"type": "function", …}`."""

    def call(self, call: ToolCall, *, timeout_s: float, most: int) -> ToolResult:
        """Call a tool of this source; return any error as the result.

        Args:
            call: well formed, by the name of one of `schemas`.
            timeout_s: Seconds that the tool may take.
            most: Longest result, in characters; of a longer one the beginning, see `shorten`.
        """

    def close(self) -> None:
        """End everything that the source has started."""


def failure(text: str) -> ToolResult:
    """Return the result of a call that failed, for the model."""
    return ToolResult(f"Error: {text}", failed=True)


def timed_out(name: str, timeout_s: float) -> ToolResult:
    """Return the result of a call that took too long."""
    return failure(f"{name} did not return within {timeout_s:g} s")


def shorten(text: str, most: int) -> str:
    """Cut a text to its first characters, and name how many were left out; what no encoding has becomes `?`."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} more characters]"


def as_text(value: Any) -> str:
    """Return a tool's result as text: text unchanged, else JSON, else as Python prints it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def name_of(schema: Schema) -> str:
    """Return the name that a call has to use."""
    return str(schema["function"]["name"])
