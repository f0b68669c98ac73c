"""Calls of tools in the text of a response, as Qwen, Hermes and Llama write them.

A response either calls or answers. What begins as a call and is none is a call too, a malformed one: the model is told
what is wrong, instead of having it graded as its answer.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from r3env.reasoning import CLOSE, OPEN, answer_of

CALL, CALL_END = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_FORM = 'a call is one JSON object, {"name": …, "arguments": {…}}'
_BETWEEN = re.compile(r"[\s;]*")


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Args:
        name: of the tool; empty where the call does not say.
        arguments: by name.
        problem: why the call is malformed, for the model; empty if it is not.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def find_calls(response: str) -> list[ToolCall]:
    """Return the calls in a response, in their order; none in one that answers.

    Read are `<tool_call>{"name": …, "arguments": {…}}</tool_call>` anywhere behind the reasoning, and, as Llama writes
    it, a response that is nothing but `{"name": …, "parameters": {…}}`, or several of them with `;` in between.
    `<|python_tag|>` may stand in front. Further keys of a call, as `"type": "function"` or an `id`, are ignored.
    Reasoning that has not ended calls nothing.
    """
    text = answer_of(response)
    if CLOSE not in response and response.lstrip().startswith(OPEN):
        return []
    return list(_between_tags(text)) if CALL in text else _bare(text.strip())


def _between_tags(text: str) -> Iterator[ToolCall]:
    _, *pieces = text.split(CALL)
    for piece in pieces:
        body, closed, _ = piece.partition(CALL_END)
        yield _read(body) if closed else ToolCall("", problem=f"the call is not closed by {CALL_END}")


def _bare(text: str) -> list[ToolCall]:
    """Calls as Llama writes them; with its tag in front, text that is none is a malformed call."""
    tagged = text.startswith(_PYTHON_TAG)
    text = text.removeprefix(_PYTHON_TAG).lstrip()
    calls: list[ToolCall] = []
    while text.startswith("{"):
        try:
            value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            break
        if "name" not in value or not {"parameters", "arguments"} & value.keys():
            break  # an answer may be an object
        calls.append(_call(value))
        text = text[end:]
        text = text[_BETWEEN.match(text).end() :]  # type: ignore[union-attr]  # it matches nothing, too
    if text:
        return [ToolCall("", problem=_FORM)] if tagged else []
    return calls


def _read(body: str) -> ToolCall:
    try:
        return _call(_DECODER.decode(body.strip()))
    except RecursionError:
        return ToolCall("", problem=f"the call is nested too deeply; {_FORM}")
    except ValueError as error:
        return ToolCall("", problem=f"the call is no JSON ({error}); {_FORM}")


def _call(value: Any) -> ToolCall:
    try:  # what takes it may fail for all others too
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return ToolCall("", problem=f"the call has half a character (a lone surrogate); {_FORM}")
    except RecursionError:
        return ToolCall("", problem=f"the call is nested too deeply; {_FORM}")
    except ValueError:
        return ToolCall("", problem=f"the call has a number that is too large; {_FORM}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return ToolCall("", problem=_FORM)
    if len({"arguments", "parameters"} & value.keys()) != 1:
        return ToolCall(value["name"], problem=_FORM)
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(arguments, dict):
        return ToolCall(value["name"], problem=f"the arguments are no JSON object; {_FORM}")
    return ToolCall(value["name"], arguments)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique)
