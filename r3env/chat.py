"""Chat turns as token ids: a conversation grows by appending, its earlier tokens are never made again.

Rendering a whole conversation anew would re-tokenize what the policy wrote (other ids for the same text, so
other log-probs), and the templates of reasoning models strip the reasoning from earlier turns. So a turn is
tokenized once, alone, and put behind the ids that are already there. What contents spell is never a control token.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Stands for the response while the template is rendered. Letters only, so that no template trims or escapes
# it, and no reasoning tags, so that none strips it.
_SENTINEL = "THEASSISTANTTURNENDSHERE"
# Marks that people write in prompts, and mean: as tokens they are what the policy itself opens and closes with.
_REASONING = frozenset({"<think>", "</think>"})


def first_turn(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The prompt of a conversation, up to where the policy begins to write.

    Args:
        tokenizer: A tokenizer of `transformers`. Without a chat template the prompt is the contents of the
            messages as plain text, a line break after each.
        messages: The turns so far, each with `role` and `content`; the last one is not the policy's.

    Returns:
        Token ids, the template's generation prompt included.
    """
    prompt = mark_control_tokens(tokenizer, messages)
    if getattr(tokenizer, "chat_template", None):
        return prompt.encode(tokenizer, _render(tokenizer, prompt.messages))
    text = "".join(message["content"] + "\n" for message in prompt.messages)
    tokens = prompt.encode(tokenizer, text, add_special_tokens=True)
    # A tokenizer that closes every text with its end token would end the conversation before it began.
    return tokens[:-1] if tokens and tokens[-1] == tokenizer.eos_token_id else tokens


def next_turn(tokenizer: Any, response_tokens: Sequence[int], user_text: str) -> list[int]:
    """The tokens to append to a response so that a user turn follows and the policy can write again.

    The response itself is only looked at, to see whether it closes its turn: a finished response holds the
    end-of-turn token already, a truncated one lacks it and gets it.

    Args:
        tokenizer: A tokenizer of `transformers`.
        response_tokens: Token ids of the policy's turn.
        user_text: Content of the user turn.

    Returns:
        Token ids: the end of the policy's turn unless it is there, the user turn, the generation prompt.

    Raises:
        ValueError: The chat template drops the assistant's turns.
    """
    turn = mark_control_tokens(tokenizer, [{"role": "user", "content": user_text}])
    if not getattr(tokenizer, "chat_template", None):
        return turn.encode(tokenizer, f"\n{turn.messages[0]['content']}\n")
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": _SENTINEL}, *turn.messages]
    _, found, following = _render(tokenizer, messages).partition(_SENTINEL)
    if not found:
        raise ValueError("the tokenizer's chat template drops the assistant's turns; another one is needed")
    tokens = turn.encode(tokenizer, following)
    return tokens[_closing_tokens(tokenizer, tokens, response_tokens) :]


def _closing_tokens(tokenizer: Any, tokens: Sequence[int], response_tokens: Sequence[int]) -> int:
    """How many leading `tokens` repeat the end-of-turn token that the response ends with."""
    if not len(response_tokens):
        return 0
    last = int(response_tokens[-1])
    # An ordinary last token, such as a line break, is content and may well be followed by another one.
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    if last not in special or last not in tokens:
        return 0
    position = list(tokens).index(last)
    # Some templates put blanks before the end-of-turn token; anything more belongs to the next turn.
    return 0 if tokenizer.decode(tokens[:position]).strip() else position + 1


def _render(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    copies = [dict(message) for message in messages]
    return str(tokenizer.apply_chat_template(copies, tokenize=False, add_generation_prompt=True))


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
