"""Convert calls of tools between the policy's text and the fields of OpenAI's messages.

The tools are the agent's, and so are their results. The policy sees both through its chat template, and what it writes
is read by the parser of `r3env/Tools-v0`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from r3env.agents.types import Message, RequestError
from r3env.reasoning import answer_of
from r3env.tools.calls import CALL, find_calls

Call = dict[str, Any]

_FORM = '{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}'
_SCHEMA_FIELDS = frozenset({"name", "description", "parameters"})


def read_tools(fields: Mapping[str, Any]) -> str:
    """Return the tools of a request as JSON, in the form for the chat template; empty if there are none.

    Raises:
        RequestError: they are no list of functions, or the request wants the policy held to something.
    """
    tools = fields.get("tools") or []
    if fields.get("tool_choice", "auto") != "auto" and (tools or fields["tool_choice"] != "none"):
        raise RequestError('tool_choice: only "auto" is served; fix: leave it out', "tool_choice")
    if tools and fields.get("parallel_tool_calls", True) is not True:
        raise RequestError("parallel_tool_calls: only true is served; fix: leave it out", "parallel_tool_calls")
    if not isinstance(tools, list):
        raise RequestError(f"tools: must be a list of {_FORM}", "tools")
    for place, tool in enumerate(tools):
        _check_tool(f"tools[{place}]", tool)
    return json.dumps(tools, ensure_ascii=False) if tools else ""


def split_calls(text: str, turn: int) -> tuple[str, list[Call]]:
    """Return the text of an answer before its calls, and the calls in the form that clients read.

    A text in which a call is malformed has none: all of it is content.

    Args:
        text: what the policy wrote.
        turn: of the policy, counted from 0 over the episode: calls have ids of their own in it.
    """
    calls = find_calls(text)
    if not calls or any(call.problem for call in calls):
        return text, []
    answer = answer_of(text)
    start = len(text) - len(answer) + max(0, answer.find(CALL))
    return text[:start], [
        {
            "id": f"call_{turn}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for number, call in enumerate(calls)
    ]


def calls_key(calls: Sequence[Call]) -> str:
    """Return a key of the calls of an answer, whatever the spacing and order of their arguments."""
    return json.dumps([[call["id"], *_called(call["function"])] for call in calls], sort_keys=True)


def read_calls(where: str, given: Any) -> str:
    """Return the key of the calls that a message of the policy's has.

    Raises:
        RequestError: they are no calls.
    """
    try:
        return calls_key(given)
    except (TypeError, KeyError):
        raise RequestError(f"{where}: must be the tool_calls of an answer, unchanged", "messages") from None


def name_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the name of the tool in each result, where others have the id of its call.

    Raises:
        RequestError: no call of this id stands before a result.
    """
    names: dict[str, str] = {}
    named = []
    for place, message in enumerate(messages):
        for call in json.loads(message.get("tool_calls", "[]")):
            names[str(call[0])] = str(call[1])
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            if call_id not in names:
                where = f"messages[{place}].tool_call_id"
                raise RequestError(f"{where}: no call with the id {call_id!r:.80} stands before it", "messages")
            message = {"role": "tool", "name": names[call_id], "content": message["content"]}
        named.append(message)
    return tuple(named)


def _called(function: Mapping[str, Any]) -> tuple[str, Any]:
    arguments = function["arguments"]
    try:
        return function["name"], json.loads(arguments)
    except (ValueError, RecursionError):
        return function["name"], arguments


def _check_tool(where: str, tool: Any) -> None:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestError(f"{where}: must be of the form {_FORM}", "tools")
    for name, value in function.items():
        if name not in _SCHEMA_FIELDS and value not in (None, False):
            raise RequestError(
                f"{where}.function.{name:.80}: not supported by this endpoint; fix: leave it out", "tools"
            )
