"""Reasoning before an answer: as text for environments, and as templates need it of an earlier turn.

Most models write `<think> … </think>` and then the answer. Those of the gpt-oss family write messages in channels,
`analysis` and `final`; here their text has the same marks.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

OPEN, CLOSE = "<think>", "</think>"
_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_ANALYSIS = "analysis"


def response_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Return what the policy wrote as text, without special tokens; reasoning in a channel gets thinking marks."""
    channels = _channel_tokens(tokenizer, getattr(tokenizer, "chat_template", None))
    tokens = list(tokens)
    if channels is None or channels[_CHANNEL] not in tokens:
        return _decode(tokenizer, tokens)
    ends = {token for mark, token in channels.items() if mark in _ENDS}
    before, *messages = _split(tokens, channels[_CHANNEL])
    reasoning, answer, is_over = "", _decode(tokenizer, _until(before, ends)), False
    for message in messages:
        header, *body = _split(message, channels[_MESSAGE])
        text = _decode(tokenizer, _until([token for part in body for token in part], ends))
        if _decode(tokenizer, header).split()[:1] == [_ANALYSIS]:
            reasoning, is_over = reasoning + text, bool(ends & set(message))
        else:
            answer, is_over = answer + text, True
    if not reasoning:
        return answer
    return f"{OPEN}\n{reasoning}\n{CLOSE}\n\n{answer}" if is_over else f"{OPEN}\n{reasoning}"


def template_message(tokenizer: Any, message: Mapping[str, str]) -> dict[str, str]:
    """Return a message as the tokenizer's template takes it: channels want reasoning and answer apart."""
    copy = dict(message)
    if message["role"] == "assistant" and _CHANNEL in str(getattr(tokenizer, "chat_template", "")):
        thinking, closed, answer = message["content"].rpartition(CLOSE)
        if not closed and message["content"].startswith(OPEN):
            thinking, answer = message["content"], ""
        copy["content"] = answer.lstrip("\n")
        if thinking:
            copy["thinking"] = thinking.removeprefix(OPEN).strip("\n")
    return copy


def answer_of(text: str) -> str:
    """Return what follows the reasoning of a response; all of it where none ends."""
    return text.rpartition(CLOSE)[2].lstrip("\n") if CLOSE in text else text


def visible_text(response: str) -> str | None:
    """Return what follows the reasoning of a response, which is what a verifier reads; None where one does not end."""
    visible = response.rpartition(CLOSE)[2]
    return None if OPEN in visible else visible


@functools.lru_cache(8)
def _channel_tokens(tokenizer: Any, chat_template: Any) -> dict[str, int] | None:
    """Ids of the marks of channels; None where the template has none."""
    added = tokenizer.get_added_vocab()
    known = {mark: added[mark] for mark in (_CHANNEL, _MESSAGE, *_ENDS) if mark in added}
    return known if _CHANNEL in str(chat_template) and {_CHANNEL, _MESSAGE} <= known.keys() else None


def _split(tokens: Sequence[int], at: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == at:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _until(tokens: Sequence[int], ends: set[int]) -> list[int]:
    place = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return list(tokens[:place])


def _decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True))
