"""How a stored failure is quoted in a reflection prompt: whole, or cut so that the second turn fits."""

from typing import Any

import numpy as np

from algorithms.r3_grpo.reflection import cut_attempt
from algorithms.r3_grpo.replay import Entry
from algorithms.rollout.types import Attempt
from r3env import chat

GAP_TEXT = "\n[...]\n"


class Quoter:
    """Turns entries into attempts.

    Args:
        tokenizer: of the policy.
        limit: the most tokens to quote; None: as many as the model's context has room for.
        context: tokens that the model can hold; None: no bound.
        guidance: text of the turn that follows the attempt.
        max_response_tokens: room to leave for the answer.
    """

    def __init__(
        self, tokenizer: Any, *, limit: int | None, context: int | None, guidance: str, max_response_tokens: int
    ) -> None:
        self._tokenizer, self._limit = tokenizer, limit
        self._gap = np.array(tokenizer.encode(GAP_TEXT, add_special_tokens=False), np.int32)
        second_turn = len(chat.next_turn(tokenizer, [], guidance)) + max_response_tokens
        self._room = None if context is None else context - second_turn

    def quote(self, entry: Entry) -> Attempt:
        """Everything that follows the entry's prompt, its middle cut out where it is too long."""
        prompt, written = entry.tokens[: entry.prompt_length], entry.tokens[entry.prompt_length :]
        quoted = cut_attempt(written, self._limit_after(len(prompt)), self._gap)
        whole = len(quoted) == len(written)
        text = entry.text if whole else self._tokenizer.decode(quoted.tolist(), skip_special_tokens=True)
        return Attempt(prompt_tokens=prompt, response_tokens=quoted, text=text)

    def _limit_after(self, prompt_length: int) -> int | None:
        limits = [] if self._limit is None else [self._limit]
        if self._room is not None:
            limits.append(max(0, self._room - prompt_length))
        return min(limits, default=None)
