"""Obvious verdicts, without a parser; most answers in training are of this kind.

Everything here takes linear time on any answer of bounded length, and runs in the training process itself.
"""

import re
from functools import lru_cache

from r3env.grading import plain_numbers, units
from r3env.grading.answer_kinds import differ_in_kind, equal_numerals, read_choice, read_words
from r3env.grading.normalization import clean, comparable, strip_assignment, strip_separators, unwrap

_BARE_LIST = re.compile(r"[\d.]+(?:\s+[\d.]+)+", re.ASCII)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_DEGREES = re.compile(r"\(?(\d+(?:\.\d+)?)\)?\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
_SET_BUILDER = re.compile(
    r"(?:\\left\s*)?\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid(?![a-zA-Z])|\||:)([^{}|:]+?)"
    r"(?:\\right\s*)?\\\}\Z"
)
_IMAGINARY = re.compile(r"(?<=\d)i(?![a-zA-Z])")  # math-verify sees the imaginary unit only where it stands alone
_read = lru_cache(maxsize=4096)(plain_numbers.read)
_clean = lru_cache(maxsize=4096)(clean)


def fast_equal(gold: str, answer: str) -> bool | None:
    """Return whether two answers are equal where that is obvious, None where it takes mathematics.

    Args:
        gold: The reference answer.
        answer: The answer to judge.
    """
    gold, answer = _clean(gold), _clean(answer)
    if not gold or not answer:
        return False
    gold_number, answer_number = _read(gold), _read(answer)
    if gold_number and answer_number:
        return answer_number.equals_gold(gold_number)
    if comparable(gold) == comparable(answer):
        return True
    if _BARE_LIST.fullmatch(gold) or _BARE_LIST.fullmatch(answer):
        return False  # math-verify would add the numbers up, as those of "1 1/2"
    numerals_equal = equal_numerals(gold, answer)
    if numerals_equal is not None:
        return numerals_equal
    if differ_in_kind(gold, answer):
        return False
    return _by_choice(gold, answer) if _either_is_choice(gold, answer) else _by_words_or_value(gold, answer)


def spelling_pair(gold: str, answer: str) -> tuple[str, str] | None:
    """Return both answers in the form that suits math-verify best, or None if their units differ.

    Args:
        gold: The reference answer.
        answer: The answer to judge.
    """
    pair = units.strip_units(_clean(gold), _clean(answer))
    return pair and (_for_parser(pair[0]), _for_parser(pair[1]))


def _for_parser(text: str) -> str:
    text = _IMAGINARY.sub(" i", strip_separators(clean(text)))
    text = _SET_BUILDER.sub(r"\1", text)
    if _TRIGONOMETRY.search(text):
        text = _DEGREES.sub(r"(\\frac{\1\\pi}{180})", text)
    return text.replace(",", "").replace(" ", "") if _read(text) and "\\" not in text else text


def _either_is_choice(gold: str, answer: str) -> bool:
    choices = [read_choice(unwrap(text)) for text in (gold, answer)]
    return all(choices) or any(choice is not None and choice[1] for choice in choices)


def _by_choice(gold: str, answer: str) -> bool | None:
    gold_choice, answer_choice = read_choice(unwrap(gold)), read_choice(unwrap(answer))
    if gold_choice and answer_choice:
        return gold_choice[0] == answer_choice[0]
    # One of them gives the letter and the value, the other one only the value.
    if gold_choice:
        return fast_equal(gold_choice[1], answer)
    return fast_equal(gold, answer_choice[1]) if answer_choice else None


def _by_words_or_value(gold: str, answer: str) -> bool | None:
    gold_word, answer_word = read_words(gold), read_words(answer)
    if gold_word and answer_word:
        return gold_word == answer_word
    pair = units.strip_units(unwrap(gold), unwrap(answer))
    if pair is None:
        return False
    gold, answer = (clean(unwrap(value)) for value in pair)
    if "=" not in gold:
        answer = strip_assignment(answer)
    elif "=" not in answer:
        gold = strip_assignment(gold)
    gold_number, answer_number = _read(clean(gold)), _read(clean(answer))
    return answer_number.equals_gold(gold_number) if gold_number and answer_number else None
