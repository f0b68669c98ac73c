"""Chat turns over small templates of the kinds in use, and byte-level tokenizers made on the spot."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from r3env.chat import first_turn, next_turn

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As DeepSeek-R1 and its distillates: reasoning is stripped from earlier turns, and thinking is opened.
R1 = (
    "<bos>{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
    "{% else %}<|Assistant|>{{ m.content.split('</think>')[-1] }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
LLAMA3 = (
    "<bos>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
SPACED = (
    "{% for m in messages %}{{ '[U] ' if m.role == 'user' else ' ' }}{{ m.content }} "
    "{{ '' if m.role == 'user' else '<eos>' }}{% endfor %}"
)
FORGETFUL = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
PLAIN_MARKS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

SPECIAL = ["<|im_start|>", "<|im_end|>", "<bos>", "<eos>", "<|User|>", "<|Assistant|>"]
SPECIAL += ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
END_OF_TURN = {CHATML: "<|im_end|>", R1: "<eos>", LLAMA3: "<|eot_id|>"}

RESPONSE = "Grübeln 🤔…\n</think>\n\n It is  \\boxed{5}."
MESSAGE = {"role": "user", "content": "Wie viel ist 2+3?"}


def tokenizer(template: str | None, *, eos: str = "<eos>") -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    merges = [("a", "s"), ("t", "h"), ("i", "s"), (".", "Ċ"), ("Ċ", "Ċ")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    made: Any = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token=eos)
    made.chat_template = template
    return made


def encode(tok: Any, text: str) -> list[int]:
    return list(tok.encode(text, add_special_tokens=False))


def rendered(tok: Any, response: str, user_text: str) -> str:
    messages = [MESSAGE, {"role": "assistant", "content": response}, {"role": "user", "content": user_text}]
    return str(tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@pytest.mark.parametrize("template", [CHATML, R1, LLAMA3, PLAIN_MARKS])
def test_the_first_turn_is_the_template_with_its_generation_prompt(template: str) -> None:
    tok = tokenizer(template)
    expected = tok.apply_chat_template([MESSAGE], tokenize=False, add_generation_prompt=True)
    tokens = first_turn(tok, [MESSAGE])
    assert tok.decode(tokens) == expected
    assert tokens.count(tok.bos_token_id) == expected.count("<bos>") <= 1


@pytest.mark.parametrize("template", [CHATML, LLAMA3])
@pytest.mark.parametrize("finished", [True, False])
def test_a_conversation_decodes_to_what_the_template_renders(template: str, finished: bool) -> None:
    tok = tokenizer(template)
    response = encode(tok, RESPONSE + (END_OF_TURN[template] if finished else ""))
    tokens = first_turn(tok, [MESSAGE]) + response + next_turn(tok, response, "Noch einmal, bitte.")
    assert tok.decode(tokens) == rendered(tok, RESPONSE, "Noch einmal, bitte.")


@pytest.mark.parametrize("finished", [True, False])
def test_reasoning_survives_a_template_that_strips_it(finished: bool) -> None:
    tok = tokenizer(R1)
    assert "Grübeln" not in rendered(tok, RESPONSE, "Again.")
    response = encode(tok, RESPONSE + ("<eos>" if finished else ""))
    tokens = first_turn(tok, [MESSAGE]) + response + next_turn(tok, response, "Again.")
    assert tok.decode(tokens) == (
        f"<bos><|User|>{MESSAGE['content']}<|Assistant|><think>\n"
        f"{RESPONSE}<eos><|User|>Again.<|Assistant|><think>\n"
    )


@pytest.mark.parametrize("template", [CHATML, R1, LLAMA3, SPACED, PLAIN_MARKS, None])
def test_response_tokens_survive_bit_for_bit(template: str | None) -> None:
    tok = tokenizer(template)
    # "as" written as two tokens and half of an emoji: ids that no tokenizer would give for their text.
    response = [*encode(tok, "a"), *encode(tok, "s"), *encode(tok, "🤔")[:2]]
    before = list(response)
    prompt = first_turn(tok, [MESSAGE])
    tokens = prompt + response + next_turn(tok, response, "Again.")
    assert response == before
    assert tokens[len(prompt) : len(prompt) + len(before)] == before
    assert encode(tok, tok.decode(response)) != before


@pytest.mark.parametrize("template", [CHATML, R1, LLAMA3])
def test_the_end_of_turn_token_stands_once(template: str) -> None:
    tok = tokenizer(template)
    end = tok.convert_tokens_to_ids(END_OF_TURN[template])
    cut_off = encode(tok, "It is")
    finished = [*cut_off, end]
    assert next_turn(tok, cut_off, "Again.") == [end, *next_turn(tok, finished, "Again.")]
    assert next_turn(tok, [], "Again.")[0] == end


def test_an_end_of_turn_token_after_a_blank_is_not_doubled() -> None:
    tok = tokenizer(SPACED)
    response = encode(tok, "It is 5.<eos>")
    assert tok.decode(next_turn(tok, response, "Again.")) == "[U] Again. "
    assert tok.decode(next_turn(tok, response[:-1], "Again.")) == " <eos>[U] Again. "


def test_ordinary_tokens_are_never_taken_for_an_end_of_turn() -> None:
    tok = tokenizer(PLAIN_MARKS)
    response = encode(tok, "It is 5.\n\n")
    assert tok.decode(next_turn(tok, response, "Again.")) == "\n\nuser: Again.\n\nassistant: "


def test_another_end_token_is_kept_and_the_turn_closed() -> None:
    tok = tokenizer(CHATML)
    response = encode(tok, "It is 5.<eos>")
    assert tok.decode(next_turn(tok, response, "Again.")).startswith("<|im_end|>\n")


def test_without_a_template_turns_are_lines() -> None:
    tok = tokenizer(None)
    response = encode(tok, "5")
    messages = [{"role": "system", "content": "Add."}, MESSAGE]
    tokens = first_turn(tok, messages) + response + next_turn(tok, response, "Again.")
    assert tok.decode(tokens) == f"Add.\n{MESSAGE['content']}\n5\nAgain.\n"


def test_a_user_text_that_looks_like_the_sentinel_or_a_tag_is_text() -> None:
    tok = tokenizer(CHATML)
    strange = "THEASSISTANTTURNENDSHERE </think> {{ m }}"
    assert strange in tok.decode(next_turn(tok, [], strange))


def test_a_template_that_drops_the_assistant_is_refused() -> None:
    with pytest.raises(ValueError, match="drops the assistant"):
        next_turn(tokenizer(FORGETFUL), [], "Again.")
