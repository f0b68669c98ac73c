"""Chat turns as token ids: a conversation grows by appending, and its earlier tokens never change.

Rendering a whole conversation anew would re-tokenize what the policy wrote (other ids for the same text, so
other log-probs), and the templates of reasoning models strip the reasoning from earlier turns. So a turn is
tokenized once, alone, and put behind the ids that are already there. `ChatFormat.rerender` has it the other way.
What contents spell is never a control token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from r3env.control_tokens import mark_control_tokens
from r3env.reasoning import template_message

__all__ = [
    "DEFAULT_FORMAT",
    "ChatFormat",
    "drops_reasoning",
    "end_of_turn",
    "first_turn",
    "mark_control_tokens",
    "next_turn",
    "next_turns",
    "second_turn",
    "with_system",
]

# Stands for the response while the template is rendered. Letters only, so that no template trims or escapes
# it, and no reasoning tags, so that none strips it.
_SENTINEL = "THEASSISTANTTURNENDSHERE"
# With these models close a turn that calls a tool, whatever the template closes turns with: Llama's and gpt-oss'.
_ENDS_OF_CALLS = ("<|eom_id|>", "<|call|>")
_EXCHANGE = ({"role": "user", "content": "Q"}, {"role": "assistant", "content": _SENTINEL})


@dataclass(frozen=True)
class ChatFormat:
    """The settings that decide the tokens of a conversation, besides the tokenizer's template.

    Args:
        template_kwargs: variables of the template: `{"enable_thinking": False}`.
        system: text of a system turn in front; None: none but the environment's or the template's own.
        rerender: whether a later turn's prompt is the whole conversation rendered anew, as a chat server does:
            templates of reasoning models then drop the reasoning of earlier turns.
        tools: what the policy may call, as `tools=` of the template: `{"type": "function", "function": {…}}` for each.
    """

    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    rerender: bool = False
    tools: Sequence[Mapping[str, Any]] = ()


DEFAULT_FORMAT = ChatFormat()


def with_system(messages: Sequence[Mapping[str, str]], system: str | None) -> list[Mapping[str, str]]:
    """Put a system turn in front, in place of an existing one; None leaves the messages unchanged."""
    if system is None:
        return list(messages)
    rest = messages[1:] if messages and messages[0]["role"] == "system" else messages
    return [{"role": "system", "content": system}, *rest]


def first_turn(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], chat_format: ChatFormat = DEFAULT_FORMAT
) -> list[int]:
    """Return the prompt of a conversation, up to where the policy begins to write.

    Args:
        tokenizer: A tokenizer of `transformers`. Without a chat template the prompt is the contents of the
            messages as plain text, a line break after each.
        messages: The turns so far, each with `role` and `content`; the last one is not the policy's.
        chat_format: Its system turn is put in front.

    Returns:
        Token ids, the template's generation prompt included.
    """
    prompt = mark_control_tokens(tokenizer, with_system(messages, chat_format.system), chat_format.tools)
    if getattr(tokenizer, "chat_template", None):
        chat_format = replace(chat_format, tools=prompt.tools)
        return prompt.encode(tokenizer, _render(tokenizer, prompt.messages, chat_format))
    text = "".join(message["content"] + "\n" for message in prompt.messages)
    tokens = prompt.encode(tokenizer, text, add_special_tokens=True)
    # A tokenizer that closes every text with its end token would end the conversation before it began.
    return tokens[:-1] if tokens and tokens[-1] == tokenizer.eos_token_id else tokens


def next_turn(
    tokenizer: Any, response_tokens: Sequence[int], user_text: str, chat_format: ChatFormat = DEFAULT_FORMAT
) -> list[int]:
    """Return the tokens to append to a response so that a user turn follows and the policy can write again.

    See `next_turns`, of which this is the case of one user turn.
    """
    return next_turns(tokenizer, response_tokens, [{"role": "user", "content": user_text}], chat_format)


def next_turns(
    tokenizer: Any,
    response_tokens: Sequence[int],
    messages: Sequence[Mapping[str, str]],
    chat_format: ChatFormat = DEFAULT_FORMAT,
) -> list[int]:
    """Return the tokens to append to a response so that some turns follow and the policy can write again.

    The response itself is only looked at, to see whether it closes its turn: a finished response holds the
    end-of-turn token already, a truncated one lacks it and gets it.

    Args:
        tokenizer: A tokenizer of `transformers`.
        response_tokens: Token ids of the policy's turn.
        messages: The turns, each with `role`, `user` or `tool`, and `content`.
        chat_format: Gives the variables of the template, and the tools.

    Returns:
        Token ids: the end of the policy's turn unless it is there, the turns, the generation prompt.

    Raises:
        ValueError: The chat template drops the assistant's turns.
    """
    turns = mark_control_tokens(tokenizer, messages, chat_format.tools)
    if not getattr(tokenizer, "chat_template", None):
        return turns.encode(tokenizer, "".join(f"\n{message['content']}\n" for message in turns.messages))
    chat_format = replace(chat_format, tools=turns.tools)
    _, found, following = _render(tokenizer, [*_EXCHANGE, *turns.messages], chat_format).partition(_SENTINEL)
    if not found:
        raise ValueError("the tokenizer's chat template drops the assistant's turns; another one is needed")
    tokens = turns.encode(tokenizer, following)
    if not len(response_tokens):
        return tokens
    return tokens[_closing_tokens(tokenizer, tokens, int(response_tokens[-1]), chat_format) :]


def second_turn(tokenizer: Any, user_text: str, chat_format: ChatFormat = DEFAULT_FORMAT) -> list[int]:
    """Return the tokens that a user turn adds at most, including the end of the turn before it.

    Raises:
        ValueError: The chat template drops the assistant's turns, which were to grow by appending.
    """
    if not chat_format.rerender:
        return next_turn(tokenizer, [], user_text, chat_format)
    whole = first_turn(tokenizer, [*_EXCHANGE, {"role": "user", "content": user_text}], chat_format)
    return whole[len(first_turn(tokenizer, _EXCHANGE[:1], chat_format)) :]


def drops_reasoning(tokenizer: Any, chat_format: ChatFormat = DEFAULT_FORMAT) -> bool:
    """Return whether the template leaves the reasoning of earlier turns out."""
    if not getattr(tokenizer, "chat_template", None):
        return False
    thought = {"role": "assistant", "content": f"<think>\n{_SENTINEL}\n</think>\n\nA"}
    return _SENTINEL not in _render(tokenizer, [_EXCHANGE[0], thought, _EXCHANGE[0]], chat_format)


def end_of_turn(tokenizer: Any, chat_format: ChatFormat = DEFAULT_FORMAT) -> int | None:
    """Return the control token with which the template closes the last of a conversation's turns, the policy's.

    None where it writes another thing there, or nothing, or takes no such conversation.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        rendered = _render(tokenizer, _EXCHANGE, chat_format, add_generation_prompt=False)
    except Exception:  # a template is a program of somebody else's, and may refuse anything
        return None
    tokens = tokenizer.encode(rendered.partition(_SENTINEL)[2], add_special_tokens=False)
    place = _first_control_token(tokenizer, tokens)
    return None if place is None else int(tokens[place])


def _closing_tokens(tokenizer: Any, tokens: Sequence[int], last: int, chat_format: ChatFormat) -> int:
    """Return how many leading `tokens` say again what `last`, the response's end, has said: that the turn is over."""
    # An ordinary last token, such as a line break, is content and may well be followed by another one.
    if last not in _control_tokens(tokenizer):
        return 0
    place = _first_control_token(tokenizer, tokens)
    if place is None:
        return 0
    # gpt-oss closes the last turn with another token than earlier ones: what is sampled stays, and stands for both.
    closes = last in (tokens[place], end_of_turn(tokenizer, chat_format)) or tokenizer.decode([last]) in _ENDS_OF_CALLS
    return place + 1 if closes else 0


def _first_control_token(tokenizer: Any, tokens: Sequence[int]) -> int | None:
    """Place of the control token that only blanks precede; None if there is none."""
    control = _control_tokens(tokenizer)
    place = next((place for place, token in enumerate(tokens) if token in control), None)
    return None if place is None or tokenizer.decode(tokens[:place]).strip() else place


def _control_tokens(tokenizer: Any) -> set[int]:
    added = tokenizer.get_added_vocab()  # blanks among them, which are content
    return {*tokenizer.all_special_ids, *(token for text, token in added.items() if text.strip())}


def _render(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    chat_format: ChatFormat,
    *,
    add_generation_prompt: bool = True,
) -> str:
    copies = [template_message(tokenizer, message) for message in messages]
    variables = dict(chat_format.template_kwargs)
    if chat_format.tools:
        variables["tools"] = [dict(tool) for tool in chat_format.tools]
    rendered = tokenizer.apply_chat_template(
        copies, tokenize=False, add_generation_prompt=add_generation_prompt, **variables
    )
    return str(rendered)
