"""Chat turns as token ids: a conversation grows by appending, its earlier tokens are never made again.

Rendering a whole conversation anew would re-tokenize what the policy wrote (other ids for the same text, so
other log-probs), and the templates of reasoning models strip the reasoning from earlier turns. So a turn is
tokenized once, alone, and put behind the ids that are already there. What contents spell is never a control token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from r3env.control_tokens import spelled

# Stands for the response while the template is rendered. Letters only, so that no template trims or escapes
# it, and no reasoning tags, so that none strips it.
_SENTINEL = "THEASSISTANTTURNENDSHERE"


def first_turn(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The prompt of a conversation, up to where the policy begins to write.

    Args:
        tokenizer: A tokenizer of `transformers`. Without a chat template the prompt is the contents of the
            messages as plain text, a line break after each.
        messages: The turns so far, each with `role` and `content`; the last one is not the policy's.

    Returns:
        Token ids, the template's generation prompt included.
    """
    prompt = spelled(tokenizer, messages)
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
    turn = spelled(tokenizer, [{"role": "user", "content": user_text}])
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
