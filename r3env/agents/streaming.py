"""Stream an answer as server-sent events: the whole message in one chunk, and its end in another.

The engine hands whole answers over, so there is nothing to send earlier.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def as_events(body: Mapping[str, Any], *, usage: bool) -> bytes:
    """Return the events of an answer.

    Args:
        body: what the request would be answered with at once.
        usage: whether the counts of tokens come last, as `stream_options.include_usage` asks.
    """
    events = [json.dumps(chunk) for chunk in _chunks(body, usage)]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def _chunks(body: Mapping[str, Any], usage: bool) -> Iterator[dict[str, Any]]:
    (choice,) = body["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(delta["tool_calls"])]
    message = {name: value for name, value in choice.items() if name != "message"}
    message |= {"delta": delta, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"], "logprobs": None}
    common = {name: value for name, value in body.items() if name not in ("choices", "usage")}
    common["object"] = "chat.completion.chunk"
    yield {**common, "choices": [message]}
    common.pop("prompt_token_ids", None)
    yield {**common, "choices": [end]}
    if usage:
        yield {**common, "choices": [], "usage": body["usage"]}
