"""Text that spells a control token of a chat stays text."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Marks that people write in prompts, and mean: as tokens they are what the policy itself opens and closes with.
_REASONING = frozenset({"<think>", "</think>"})


@dataclass(frozen=True)
class MarkedMessages:
    """Messages in which each spelling of a control token is a mark, and what the marks stand for.

    Args:
        messages: as they were, with marks.
        mark: regular expression of a mark; None where there is none.
        texts: the spelling behind each mark, by the mark.
    """

    messages: tuple[dict[str, str], ...]
    mark: str | None
    texts: Mapping[str, str]

    def encode(self, tokenizer: Any, rendered: str, *, add_special_tokens: bool = False) -> list[int]:
        """Tokens of rendered text, whose control tokens are those that the template wrote and no others."""
        if self.mark is None:
            return list(tokenizer.encode(rendered, add_special_tokens=add_special_tokens))
        first, *rest = re.split(f"({self.mark})", rendered)
        tokens = list(tokenizer.encode(first, add_special_tokens=add_special_tokens))
        if tokens and tokens[-1] == tokenizer.eos_token_id:
            tokens.pop()  # some tokenizers close every text, and this one goes on
        for piece in rest:
            text = self.texts.get(piece)
            # In two parts, neither of which is a token of its own.
            for part in [piece] if text is None else [text[:1], text[1:]]:
                tokens += tokenizer.encode(part, add_special_tokens=False) if part else []
        return tokens


def mark_control_tokens(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> MarkedMessages:
    """Put marks where the contents of messages spell a control token of the tokenizer.

    Control tokens are the tokenizer's special tokens and the added ones that its chat template writes, but for
    `<think>` and `</think>`.

    Args:
        tokenizer: of `transformers`.
        messages: each with `role` and `content`.
    """
    copies = tuple(dict(message) for message in messages)
    spelling = _spelling(tokenizer, getattr(tokenizer, "chat_template", None))
    if spelling is None or not any(spelling.search(message["content"]) for message in copies):
        return MarkedMessages(copies, None, {})
    contents = "".join(message["content"] for message in copies)
    letter = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in contents)
    texts: dict[str, str] = {}

    def marked(found: re.Match[str]) -> str:
        mark = f"{letter}{len(texts)}{letter}"
        texts[mark] = found[0]
        return mark

    for message in copies:
        message["content"] = spelling.sub(marked, message["content"])
    return MarkedMessages(copies, rf"{letter}\d+{letter}", texts)


@functools.lru_cache(8)
def _spelling(tokenizer: Any, chat_template: str | None) -> re.Pattern[str] | None:
    added = [token for token in tokenizer.added_tokens_decoder.values() if token.content not in _REASONING]
    template = chat_template if isinstance(chat_template, str) else ""
    control = {token.content for token in added if token.special or token.content in template}
    longest_first = sorted(filter(None, control), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
