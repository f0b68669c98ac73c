"""Beginnings of successes: where the final answer starts, and how one error gets in."""

import re
from bisect import bisect_left
from typing import TYPE_CHECKING, Literal

import numpy as np

from r3env.chat import mark_control_tokens

if TYPE_CHECKING:  # slow to import
    from transformers import PreTrainedTokenizerBase

ANSWER_MARKS = ("\\boxed", "</think>", "<|channel|>final")  # what a final answer begins with
Flaw = Literal["digit", "step", "sign"]
_PLACES = {
    "digit": re.compile("[0-9]"),
    "step": re.compile(r"=\s*(-?[0-9]{1,40})(?![0-9])"),
    "sign": re.compile(r"[+-](?=\s*[0-9])"),
}


def encode_text(tokenizer: "PreTrainedTokenizerBase", text: str) -> np.ndarray:
    """Encode text without control tokens, whatever it spells; int32 [L]."""
    marked = mark_control_tokens(tokenizer, [{"role": "assistant", "content": text}])
    return np.array(marked.encode(tokenizer, marked.messages[0]["content"]), np.int32)


def decode(tokenizer: "PreTrainedTokenizerBase", tokens: np.ndarray) -> str:
    """Decode tokens, control tokens included."""
    return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))


def body_length(tokenizer: "PreTrainedTokenizerBase", tokens: np.ndarray) -> int:
    """Count the tokens of a response, int [L], before its final answer; where none is marked, before the turn's end."""
    special = np.isin(tokens, tokenizer.all_special_ids)
    if special.all():
        return 0
    most = len(tokens) - int(np.argmin(special[::-1]))
    text = decode(tokenizer, tokens[:most])
    starts = [place for mark in ANSWER_MARKS if (place := text.find(mark)) >= 0]
    if not starts:
        return most
    # The first token with which the text reaches into the mark is not of the body.
    return max(0, bisect_left(range(most), min(starts) + 1, key=lambda n: len(decode(tokenizer, tokens[:n]))) - 1)


def flawed_prefix(
    tokenizer: "PreTrainedTokenizerBase", tokens: np.ndarray, kind: Flaw, rng: np.random.Generator
) -> np.ndarray | None:
    """Put an error into a prefix, int32 [B]; None if it has no number, or control tokens, which text does not keep.

    See `plant_error`. The prefix is encoded anew, so that its tokens may be other ones in front of the error too.
    """
    if np.isin(tokens, tokenizer.all_special_ids).any():
        return None
    wrong = plant_error(decode(tokenizer, tokens).rstrip("\ufffd"), kind, rng)  # half a character has no text
    return encode_text(tokenizer, wrong) if wrong else None


def plant_error(text: str, kind: Flaw, rng: np.random.Generator) -> str:
    """Return the text with its last number or sign changed, behind which nothing is right already; empty without one.

    Args:
        text: the beginning of a correct response.
        kind: `digit`: a digit becomes another; `step`: a number behind a `=` is off by one or two; `sign`: a plus
            becomes a minus or the other way; where there is no such place, as `digit`.
        rng: chooses what it becomes.
    """
    for tried in (kind, "digit"):
        places = list(_PLACES[tried].finditer(text))
        if places:
            start, end = places[-1].span(places[-1].lastindex or 0)
            return f"{text[:start]}{_changed(text, start, end, tried, rng)}{text[end:]}"
    return ""


def _changed(text: str, start: int, end: int, kind: str, rng: np.random.Generator) -> str:
    """Return what stands in the place of `text[start:end]`."""
    old = text[start:end]
    if kind == "step":
        return str(int(old) + int(rng.choice((-2, -1, 1, 2))))
    if kind == "sign":
        return "+" if old == "-" else "-"
    leading = not text[:start][-1:].isdigit() and text[end : end + 1].isdigit()
    others = [digit for digit in "0123456789"[leading:] if digit != old]
    return others[rng.integers(len(others))]
