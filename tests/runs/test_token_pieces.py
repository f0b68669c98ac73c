"""Every token of a response has its piece, and the pieces are the response."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.train.rollout_files import TokenPieces


@pytest.fixture(scope="module")
def by_bytes():
    return load_tokenizer(resolve_model("embedded:tiny"))


def by_words():
    """As Llama's: a word's piece begins with its space, which the decoder takes from the first word of a text."""
    model = models.WordLevel({"▁a": 0, "▁b": 1, "c": 2, "<unk>": 3}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@settings(deadline=None)
@given(text=st.text(max_size=20))
def test_pieces_of_a_text_joined_are_the_text(by_bytes, text):
    tokens = by_bytes.encode(text, add_special_tokens=False)
    pieces = TokenPieces(by_bytes).cut(tokens)
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == by_bytes.decode(tokens, skip_special_tokens=False)


def test_a_character_of_several_tokens_is_the_last_ones(by_bytes):
    tokens = by_bytes.encode("a日b", add_special_tokens=False)
    assert TokenPieces(by_bytes).cut(tokens) == ("a", "", "", "日", "b")


def test_a_character_that_was_cut_off_is_shown_as_such(by_bytes):
    tokens = by_bytes.encode("a日", add_special_tokens=False)[:-1]
    assert "".join(TokenPieces(by_bytes).cut(tokens)) == "a\ufffd"


def test_a_control_token_is_spelled_out(by_bytes):
    assert TokenPieces(by_bytes).cut([by_bytes.eos_token_id]) == (by_bytes.eos_token,)


def test_the_space_before_a_word_is_kept():
    assert TokenPieces(by_words()).cut([1, 0, 2]) == (" b", " a", "c")
