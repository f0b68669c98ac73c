"""Keep text that spells a chat's control tokens as text."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Marks that people write in prompts, and mean: as tokens they are what the policy itself opens and closes with.
_REASONING = frozenset({"<think>", "</think>"})
# Marks that the policy itself writes around its calls: in its own turns they are the tokens that it sampled.
_OF_POLICY = frozenset({"<tool_call>", "</tool_call>"})


@dataclass(frozen=True)
class MarkedMessages:
    """Messages in which a mark replaces each spelling of a control token, and the meaning of the marks.

    Args:
        messages: as they were, with marks.
        mark: regular expression of a mark; None where there is none.
        texts: the spelling behind each mark, by the mark.
        tools: as they were, with marks.
    """

    messages: tuple[dict[str, str], ...]
    mark: str | None
    texts: Mapping[str, str]
    tools: tuple[dict[str, Any], ...] = ()

    def encode(self, tokenizer: Any, rendered: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of rendered text, in which only the template's control tokens count as such."""
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


def mark_control_tokens(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
) -> MarkedMessages:
    """Put marks where the contents of messages, or tools, spell a control token of the tokenizer.

    Control tokens are the tokenizer's special tokens and the added ones that its chat template writes, but for
    `<think>` and `</think>`, and in the policy's turns `<tool_call>` and `</tool_call>`.

    Args:
        tokenizer: of `transformers`.
        messages: each with `role` and `content`.
        tools: what each is called, does and takes, in text, lists and mappings.
    """
    copies, schemas = tuple(dict(message) for message in messages), tuple(dict(tool) for tool in tools)
    spelling = _spelling(tokenizer, getattr(tokenizer, "chat_template", None))
    contents = "".join([*(message["content"] for message in copies), *_strings(schemas)])
    if spelling is None or not spelling.search(contents):
        return MarkedMessages(copies, None, {}, schemas)
    letter = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in contents)
    texts: dict[str, str] = {}

    def marked(found: re.Match[str], kept: frozenset[str] = frozenset()) -> str:
        if found[0] in kept:
            return found[0]
        mark = f"{letter}{len(texts)}{letter}"
        texts[mark] = found[0]
        return mark

    for message in copies:
        kept = _OF_POLICY if message["role"] == "assistant" else frozenset[str]()
        message["content"] = spelling.sub(functools.partial(marked, kept=kept), message["content"])
    schemas = tuple(_in_strings(schema, functools.partial(spelling.sub, marked)) for schema in schemas)
    return MarkedMessages(copies, rf"{letter}\d+{letter}", texts, schemas)


def _strings(value: Any) -> Iterator[str]:
    """All texts in lists and mappings, with a break between what might join to a spelling."""
    if isinstance(value, str):
        yield f"\n{value}"
    elif isinstance(value, Mapping):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _strings(one)


def _in_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Lists and mappings with every text in them changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_in_strings(key, change): _in_strings(one, change) for key, one in value.items()}
    return [_in_strings(one, change) for one in value] if isinstance(value, list | tuple) else value


@functools.lru_cache(8)
def _spelling(tokenizer: Any, chat_template: str | None) -> re.Pattern[str] | None:
    added = [token for token in tokenizer.added_tokens_decoder.values() if token.content not in _REASONING]
    template = chat_template if isinstance(chat_template, str) else ""
    # Blanks, which Gemma's tokenizers have added tokens of, end no turn and begin none.
    words = [token for token in added if token.content.strip()]
    control = {token.content for token in words if token.special or token.content in template}
    longest_first = sorted(control, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
