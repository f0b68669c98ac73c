"""Conversations of the families that people train, token for token: system turns, template variables, reasoning."""

from typing import Any

import pytest
from tokenizers import AddedToken

from r3env.chat import ChatFormat, drops_reasoning, end_of_turn, first_turn, next_turn, second_turn, with_system
from r3env.reasoning import answer_of, response_text
from tests.chat_families import FAMILIES, GEMMA2, R1, THOUGHT, Family, encode, make_tokenizer

PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
Q, AGAIN, AND_AGAIN = "What is 2+3?", "Once more.", "And once more."
SYSTEM = "Answer in one sentence."
FORGETS = ("qwen3", "deepseek-r1", "gpt-oss")

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
forgetful = pytest.mark.parametrize("family", [FAMILIES[name] for name in FORGETS], ids=FORGETS)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def whole(tokenizer: Any, messages: list[dict[str, str]], **variables: Any) -> list[int]:
    """The template's own tokens of a conversation, up to where the policy writes."""
    return list(
        tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, **variables)["input_ids"]
    )


def grown(tokenizer: Any, turns: list[str], chat_format: ChatFormat) -> list[int]:
    """A conversation of user turns, and of responses as they were sampled, in turn; grown by appending."""
    question, *rest = turns
    tokens = first_turn(tokenizer, [user(question)], chat_format)
    for response, text in zip(rest[::2], rest[1::2], strict=True):
        sampled = encode(tokenizer, response)
        tokens += sampled + next_turn(tokenizer, sampled, text, chat_format)
    return tokens


@every_family
@pytest.mark.parametrize("system", [None, SYSTEM], ids=["no system", "system"])
@pytest.mark.parametrize("set_variables", [False, True], ids=["no variables", "variables"])
def test_a_first_prompt_is_the_templates_own_token_for_token(family: Family, system: str, set_variables: bool) -> None:
    tokenizer = make_tokenizer(family.template)
    variables = family.variables if set_variables else {}
    messages = [user(Q)] if system is None else [{"role": "system", "content": system}, user(Q)]
    tokens = first_turn(tokenizer, [user(Q)], ChatFormat(variables, system))
    assert tokens == whole(tokenizer, messages, **variables)
    assert tokens.count(tokenizer.bos_token_id) == family.bos
    assert (SYSTEM in tokenizer.decode(tokens)) == (system is not None)


@every_family
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "cut off"])
def test_three_turns_without_reasoning_are_the_templates_own_token_for_token(family: Family, finished: bool) -> None:
    tokenizer = make_tokenizer(family.template)
    opening, end = ("<|channel|>final<|message|>" if "gpt" in _name(family) else ""), family.end if finished else ""
    form = ChatFormat(system=SYSTEM)
    tokens = grown(tokenizer, [Q, f"{opening}It is 5.{end}", AGAIN, f"{opening}Still 5{end}", AND_AGAIN], form)
    messages = [{"role": "system", "content": SYSTEM}, user(Q), assistant("It is 5."), user(AGAIN)]
    expected = whole(tokenizer, [*messages, assistant("Still 5"), user(AND_AGAIN)])
    if _name(family) == "deepseek-r1":  # it opens the reasoning of the answer that it asks for, and of no other
        expected = _without(tokenizer, "<think>\n", expected)
        tokens = _without(tokenizer, "<think>\n", tokens)
    if _name(family) == "gpt-oss" and finished:  # what closes a last turn was sampled, and stays
        tokens = [_id(tokenizer, "<|end|>") if token == _id(tokenizer, "<|return|>") else token for token in tokens]
    assert tokens == expected


@forgetful
def test_sampled_reasoning_stays_where_a_template_would_drop_it(family: Family) -> None:
    tokenizer = make_tokenizer(family.template)
    assert drops_reasoning(tokenizer)
    first = first_turn(tokenizer, [user(Q)])
    sampled = encode(tokenizer, family.response + family.end)
    tokens = grown(tokenizer, [Q, family.response + family.end, AGAIN], ChatFormat())
    assert tokens[: len(first) + len(sampled)] == first + sampled
    between = {
        "qwen3": f"\n<|im_start|>user\n{AGAIN}<|im_end|>\n<|im_start|>assistant\n",
        "deepseek-r1": f"<｜User｜>{AGAIN}<｜Assistant｜><think>\n",
        "gpt-oss": f"<|start|>user<|message|>{AGAIN}<|end|><|start|>assistant",
    }
    assert tokens[len(first) + len(sampled) :] == encode(tokenizer, between[_name(family)])


@every_family
def test_a_conversation_rendered_anew_is_the_templates_own_token_for_token(family: Family) -> None:
    tokenizer = make_tokenizer(family.template)
    text = response_text(tokenizer, encode(tokenizer, family.response + family.end))
    assert text == family.text
    tokens = first_turn(tokenizer, [user(Q), assistant(text), user(AGAIN)], ChatFormat(family.variables, SYSTEM, True))
    messages = [{"role": "system", "content": SYSTEM}, user(Q), assistant(family.answer), user(AGAIN)]
    assert tokens == whole(tokenizer, messages, **family.variables)
    assert "2 and 3" not in tokenizer.decode(tokens)


@every_family
def test_a_second_turn_takes_no_more_room_than_it_is_said_to(family: Family) -> None:
    tokenizer = make_tokenizer(family.template)
    first = first_turn(tokenizer, [user(Q)])
    for rerender in (False, True):
        form = ChatFormat(rerender=rerender)
        room = len(second_turn(tokenizer, AGAIN, form))
        written = encode(tokenizer, "It is 5.")
        again = (
            first_turn(tokenizer, [user(Q), assistant("It is 5."), user(AGAIN)], form)
            if rerender
            else first + written + next_turn(tokenizer, written, AGAIN, form)
        )
        assert len(again) <= len(first) + len(written) + room


def test_thinking_that_is_switched_off_belongs_to_every_prompt_and_to_no_response() -> None:
    tokenizer, form = make_tokenizer(FAMILIES["qwen3"].template), ChatFormat({"enable_thinking": False})
    empty = "<think>\n\n</think>\n\n"
    first = first_turn(tokenizer, [user(Q)], form)
    assert tokenizer.decode(first).endswith(f"<|im_start|>assistant\n{empty}")
    following = next_turn(tokenizer, encode(tokenizer, "It is 5.<|im_end|>"), AGAIN, form)
    assert tokenizer.decode(following) == f"\n<|im_start|>user\n{AGAIN}<|im_end|>\n<|im_start|>assistant\n{empty}"
    anew = first_turn(tokenizer, [user(Q), assistant("It is 5."), user(AGAIN)], form)
    assert tokenizer.decode(anew).count("<think>") == 1


@every_family
def test_the_token_that_ends_a_turn_is_read_off_the_template(family: Family) -> None:
    tokenizer = make_tokenizer(family.template)
    assert end_of_turn(tokenizer) == _id(tokenizer, family.end)


def test_a_template_that_closes_no_turn_names_no_token() -> None:
    assert end_of_turn(make_tokenizer(None)) is None
    assert end_of_turn(make_tokenizer("{% for m in messages %}{{ m.content }}\n{% endfor %}")) is None
    assert end_of_turn(make_tokenizer("{{ raise_exception('no') }}")) is None


def test_a_system_turn_takes_the_place_of_one_that_is_there() -> None:
    mine = {"role": "system", "content": SYSTEM}
    theirs = {"role": "system", "content": "theirs"}
    assert with_system([theirs, user(Q)], SYSTEM) == with_system([user(Q)], SYSTEM) == [mine, user(Q)]
    assert with_system([theirs, user(Q)], None) == [theirs, user(Q)]


def test_a_template_without_a_system_role_says_so() -> None:
    with pytest.raises(Exception, match="System role not supported"):
        first_turn(make_tokenizer(GEMMA2), [user(Q)], ChatFormat(system=SYSTEM))


@pytest.mark.parametrize(
    ("sampled", "text"),
    [
        ("<|channel|>analysis<|message|>Let me th", "<think>\nLet me th"),
        ("<|channel|>analysis<|message|>Hm.<|end|>", "<think>\nHm.\n</think>\n\n"),
        ("<|channel|>final<|message|>5<|return|>", "5"),
        ("<|channel|>ana", ""),
        ("5<|return|>", "5"),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>{}<|call|>", None),
    ],
)
def test_channels_become_marks_of_thinking(sampled: str, text: str | None) -> None:
    tokenizer = make_tokenizer(FAMILIES["gpt-oss"].template)
    expected = "<think>\nHm.\n</think>\n\n{}" if text is None else text
    assert response_text(tokenizer, encode(tokenizer, sampled)) == expected


def test_text_of_other_families_is_what_was_decoded() -> None:
    tokenizer = make_tokenizer(R1)
    tokens = encode(tokenizer, f"{THOUGHT}<｜end▁of▁sentence｜>")
    assert response_text(tokenizer, tokens) == tokenizer.decode(tokens, skip_special_tokens=True) == THOUGHT


def test_an_answer_is_what_follows_the_reasoning() -> None:
    assert answer_of(THOUGHT) == answer_of("It is 5.") == "It is 5."
    assert answer_of("<think>\nnot done") == "<think>\nnot done"


def _name(family: Family) -> str:
    return next(name for name, other in FAMILIES.items() if other is family)


def _id(tokenizer: Any, token: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(token))


def _without(tokenizer: Any, text: str, tokens: list[int]) -> list[int]:
    return encode(tokenizer, tokenizer.decode(tokens).replace(text, ""))


def test_line_breaks_that_are_tokens_of_their_own_are_content() -> None:
    """As in Gemma's tokenizers, whose runs of line breaks are added tokens, and stand in every template."""
    for template in (GEMMA2, PLAIN):
        tokenizer = make_tokenizer(template)
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "\n")])
        for text in ("a\n\nb", "a\n\nb\n"):
            rendered = tokenizer.apply_chat_template([user(text)], tokenize=False, add_generation_prompt=True)
            assert first_turn(tokenizer, [user(text)]) == encode(tokenizer, rendered)
    assert end_of_turn(tokenizer) is None, "a blank line ends no turn"
