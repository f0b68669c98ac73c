"""Bodies of `/v1/chat/completions`: what a request may contain, and the response to it."""

import json
from collections.abc import Mapping
from typing import Any

from r3env.agents.tool_calls import name_results, read_calls, read_tools, split_calls
from r3env.agents.types import ChatRequest, Completion, Message, Policy, RequestError

MODEL = "policy"

_SAME = 1e-6
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# Of a message; the policy never sees a name.
_MESSAGE_FIELDS = frozenset({"role", "content", "name"})
_ROLE_FIELDS = {"assistant": "tool_calls", "tool": "tool_call_id"}
_READ = frozenset(
    "model messages temperature top_p max_tokens max_completion_tokens n logprobs return_token_ids "
    "stream stream_options tools tool_choice parallel_tool_calls".split()
)
# They change nothing that is sampled: an episode has its own seed.
_WITHOUT_EFFECT = frozenset("user seed metadata store service_tier prompt_cache_key safety_identifier".split())
# Values that mean the same as leaving a field out.
_NEUTRAL = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


def read_request(body: bytes, policy: Policy) -> ChatRequest:
    """Read what a client sent.

    Raises:
        RequestError: it asks for something that the run does not give.
    """
    try:
        request = _read(json.loads(body.decode()), policy)
        "".join([*(text for message in request.messages for text in message.values()), request.tools]).encode()
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except UnicodeEncodeError:
        raise RequestError("the body has an unpaired surrogate, which is no text") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON in UTF-8: {error}") from None
    return request


def _read(fields: Any, policy: Policy) -> ChatRequest:
    if not isinstance(fields, dict):
        raise RequestError("the body is not a JSON object")
    fields = {name: value for name, value in fields.items() if not _says_nothing(name, value)}
    for name in sorted(fields.keys() - _READ):
        fix = "leave it out" + (", and set env_runners.stop" if name == "stop" else "")
        raise RequestError(f"{name:.80}: not supported by this endpoint; fix: {fix}", name)
    if fields.get("model", MODEL) != MODEL:
        message = (
            f"model: there is no {fields['model']!r:.80}, only {MODEL!r}; fix: pass the agent's argument `model` on"
        )
        raise RequestError(message, "model", status=404, code="model_not_found")
    if fields.get("n", 1) != 1:
        raise RequestError(f"n: one completion per request, not {fields['n']!r:.80}; fix: leave it out", "n")
    _check_same("temperature", fields, policy.temperature)
    _check_same("top_p", fields, policy.top_p)
    return ChatRequest(
        messages=_messages(fields.get("messages")),
        max_tokens=_max_tokens(fields, policy.max_tokens),
        logprobs=fields.get("logprobs", False) is True,
        token_ids=fields.get("return_token_ids", False) is True,
        tools=read_tools(fields),
        stream=_stream(fields),
        stream_usage=_stream(fields) and _includes_usage(fields.get("stream_options")),
    )


def completion_body(request: ChatRequest, completion: Completion, number: int) -> dict[str, Any]:
    """Return the response body for a request.

    Args:
        request: what was asked.
        completion: what the policy wrote.
        number: of the policy's turn in its episode.
    """
    content, calls = split_calls(completion.text, number) if request.tools else (completion.text, [])
    message = {"role": "assistant", "content": content}
    choice: dict[str, Any] = {
        "index": 0,
        "message": message | {"content": content or None, "tool_calls": calls} if calls else message,
        "finish_reason": "tool_calls" if calls and completion.finish_reason == "stop" else completion.finish_reason,
        "logprobs": {"content": _logprobs(completion), "refusal": None} if request.logprobs else None,
    }
    body: dict[str, Any] = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 0, "model": MODEL}
    if request.token_ids:
        choice["token_ids"] = [int(token) for token in completion.tokens]
        body["prompt_token_ids"] = [int(token) for token in completion.prompt_tokens]
    prompt, written = len(completion.prompt_tokens), len(completion.tokens)
    usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    return body | {"choices": [choice], "usage": usage}


def models_body() -> dict[str, Any]:
    """Return the list of models, which has one."""
    return {"object": "list", "data": [model_body()]}


def model_body() -> dict[str, Any]:
    """Return the one model."""
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "r3-grpo"}


def _says_nothing(name: str, value: Any) -> bool:
    empty = value is False or value == [] or value == {}
    unread = name not in _READ and (empty or name in _WITHOUT_EFFECT or value in _NEUTRAL.get(name, ()))
    return value is None or unread


def _stream(fields: Mapping[str, Any]) -> bool:
    stream = fields.get("stream", False)
    if not isinstance(stream, bool):
        raise RequestError(f"stream: must be true or false, it is {stream!r:.80}", "stream")
    return stream


def _includes_usage(options: Any) -> bool:
    return isinstance(options, dict) and options.get("include_usage") is True


def _check_same(name: str, fields: Mapping[str, Any], own: float | None) -> None:
    """Check that a request samples as the run does: its log-probs are those of one distribution."""
    value = fields.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name}: must be a number, it is {value!r:.80}", name)
    if own is not None and not own - _SAME <= value <= own + _SAME:
        setting = f"env_runners.{name} (in evaluations evaluation.{name})"
        raise RequestError(
            f"{name}: the run samples at {own:g}, not {value!r:.80}; fix: leave it out, or set {setting}", name
        )


def _max_tokens(fields: Mapping[str, Any], most: int | None) -> int | None:
    """Return the limit that a request sets; None where it sets none, or the run's own."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RequestError(f"{name}: must be a whole number of at least 1, it is {value!r:.80}", name)
        if most is not None and value > most:
            raise RequestError(
                f"{name}: the run allows {most} tokens, not {value!r:.80}; "
                f"fix: leave it out, or set env_runners.max_response_tokens={value!r:.80}",
                name,
            )
        return None if value == most else value
    return None


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise RequestError("messages: must be a list of at least one message", "messages")
    messages = tuple(_message(place, message) for place, message in enumerate(given))
    if messages[-1]["role"] not in ("user", "tool"):
        text = f"the last one must be the user's or a tool's, not of role {messages[-1]['role']}"
        raise RequestError(f"messages: {text}", "messages")
    return name_results(messages)


def _message(place: int, given: Any) -> Message:
    where = f"messages[{place}]"
    if not isinstance(given, dict):
        raise RequestError(f"{where}: must be an object with role and content", "messages")
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(f"{where}.role: must be one of {', '.join(_ROLES)}, it is {role!r:.80}", "messages")
    given = {name: value for name, value in given.items() if value not in (None, [], {})}
    for name, value in given.items():
        if name not in _MESSAGE_FIELDS and name != _ROLE_FIELDS.get(role) and value != "":
            raise RequestError(f"{where}.{name:.80}: not supported by this endpoint; fix: leave it out", "messages")
    calls = given.get("tool_calls") if role == "assistant" else None
    content = "" if calls and "content" not in given else _content(f"{where}.content", given.get("content"))
    message = {"role": _ROLES[role], "content": content}
    if calls:
        return message | {"tool_calls": read_calls(f"{where}.tool_calls", calls)}
    if role == "tool":
        return message | {"tool_call_id": str(given.get("tool_call_id", ""))}
    return message


def _content(where: str, content: Any) -> str:
    """Return the text of a message's content, which may come in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise RequestError(f"{where}: must be text, or parts of type text; the policy reads nothing else", "messages")


def _logprobs(completion: Completion) -> list[dict[str, Any]]:
    rows = zip(completion.pieces, completion.logprobs, strict=True)
    return [
        {"token": piece, "logprob": float(logprob), "bytes": list(piece.encode()), "top_logprobs": []}
        for piece, logprob in rows
    ]
