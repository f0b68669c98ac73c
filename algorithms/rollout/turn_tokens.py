"""The tokens of turns, written with the tokenizer's chat template."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from r3env import chat

REMEMBERED_TURNS = 256

_Messages = tuple[tuple[tuple[str, str], ...], ...]


class TurnTokens:
    """Writes turns with the tokenizer's chat template, each once: samples of a prompt begin alike.

    Args:
        tokenizer: of the policy.
        chat_format: of the conversations; tools are those of each call.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_format: chat.ChatFormat) -> None:
        cached = functools.lru_cache(REMEMBERED_TURNS)
        self._first = cached(functools.partial(_first, tokenizer, chat_format))
        self._following = cached(functools.partial(_following, tokenizer, chat_format))

    def first(self, messages: Sequence[Mapping[str, str]], tools: str = "") -> tuple[int, ...]:
        """Return the prompt of a conversation, see `r3env.chat.first_turn`.

        Args:
            messages: the turns so far.
            tools: what the policy may call, as JSON; empty: none.
        """
        return self._first(tools, _hashable(messages))

    def following(
        self, response_tokens: np.ndarray, messages: Sequence[Mapping[str, str]], tools: str = ""
    ) -> tuple[int, ...]:
        """Return what follows a response, see `r3env.chat.next_turns` and `first`."""
        # All that is needed of the response: the token that closes its turn, or does not.
        last = tuple(response_tokens[-1:].tolist())
        return self._following(tools, last, _hashable(messages))


def _first(
    tokenizer: PreTrainedTokenizerBase, chat_format: chat.ChatFormat, tools: str, messages: _Messages
) -> tuple[int, ...]:
    return tuple(chat.first_turn(tokenizer, list(map(dict, messages)), _with_tools(chat_format, tools)))


def _following(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: chat.ChatFormat,
    tools: str,
    last: tuple[int, ...],
    messages: _Messages,
) -> tuple[int, ...]:
    return tuple(chat.next_turns(tokenizer, last, list(map(dict, messages)), _with_tools(chat_format, tools)))


def _with_tools(chat_format: chat.ChatFormat, tools: str) -> chat.ChatFormat:
    return replace(chat_format, tools=json.loads(tools)) if tools else chat_format


def _hashable(messages: Sequence[Mapping[str, str]]) -> _Messages:
    return tuple(tuple(message.items()) for message in messages)
