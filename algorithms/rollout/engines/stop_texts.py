"""Find the token that completes a text which ends a response, as vLLM's incremental detokenizer finds it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Tokens of the prompt that the first one's text is read behind: some tokenizers drop a leading blank.
CONTEXT = 6
_INCOMPLETE = "\ufffd"  # what bytes decode to that are no whole character yet


class StopTexts:
    """Reads one response, token by token. Special tokens count as the text that they are written as.

    A token's text is what it adds behind its predecessors, once its bytes make whole characters.

    Args:
        tokenizer: of the model.
        prompt: int32 [P], what the response follows; its own text is not searched.
        stop: the texts, none of them empty.
    """

    def __init__(self, tokenizer: Any, prompt: np.ndarray, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._tokens = prompt[-CONTEXT:].tolist()
        self._read = len(self._tokens)  # of `_tokens`, those whose text has been searched
        self._overlap = max(map(len, stop)) - 1
        self._tail = ""

    def complete(self, token: int) -> bool:
        """Add the response's next token; return whether it completes a stop text."""
        self._tokens.append(token)
        before, text = self._decode(self._tokens[: self._read]), self._decode(self._tokens)
        if len(text) <= len(before) or text.endswith(_INCOMPLETE):
            return False
        self._tokens, self._read = self._tokens[self._read :], len(self._tokens) - self._read
        searched = self._tail + text[len(before) :]
        self._tail = searched[-self._overlap :] if self._overlap else ""
        return any(stop in searched for stop in self._stop)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))
