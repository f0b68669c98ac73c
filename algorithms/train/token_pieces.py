"""The text of each token of a response."""

from collections.abc import Sequence
from typing import Any

# What a decoder puts where bytes are no character, or not yet one.
_NO_CHARACTER = "\ufffd"
# A character has four bytes at most; a run of tokens that end within one character and begin within another is longer.
_LONGEST_RUN = 8


class TokenPieces:
    """Cuts a response's text at its tokens; caches the piece of every token.

    Args:
        tokenizer: Hugging Face's, of the policy.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Some decoders swallow the space in front of a text: each token is decoded behind another one.
        self._before = list(tokenizer.encode("a", add_special_tokens=False)[-1:])
        self._cut = 0
        self._cut = len(self._decode([]))
        self._known: dict[int, str] = {}

    def cut(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return one piece per token, control tokens included.

        A character whose bytes lie in several tokens is the last one's piece; the others' are empty.
        """
        pieces: list[str] = []
        incomplete: list[int] = []
        for token in tokens:
            piece = self._piece(token)
            if incomplete or _NO_CHARACTER in piece:
                incomplete.append(token)
                piece = self._decode(incomplete)
                if piece.endswith(_NO_CHARACTER) and len(incomplete) < _LONGEST_RUN:
                    piece = ""
                else:
                    incomplete = []
            pieces.append(piece)
        if incomplete:
            pieces[-1] = self._decode(incomplete)
        return tuple(pieces)

    def _piece(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._decode([token])
        return self._known[token]

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            [*self._before, *tokens], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text[self._cut :]
