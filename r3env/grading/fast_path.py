"""Obvious verdicts, without a parser; most answers in training are of this kind.

Everything here takes linear time on any answer of bounded length, and runs in the training process itself.
"""

import re
from functools import lru_cache

from r3env.grading import plain_numbers, units
from r3env.grading.answer_kinds import differ_in_kind, equal_numerals, read_choice, read_words
from r3env.grading.conditions import strip_conditions
from r3env.grading.inequalities import as_set
from r3env.grading.normalization import (
    clean,
    comparable,
    encloses,
    equations_as_list,
    join_thousands,
    primes_as_indices,
    strip_assignment,
    strip_separators,
    unwrap,
)
from r3env.grading.parser_spelling import respell, tell_letters_apart

_BARE_LIST = re.compile(r"[\d.]+(?:\s+[\d.]+)+", re.ASCII)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_DEGREES = re.compile(r"(?:\((?=[\d.]+\)))?(?<!\d)(\d+(?:\.\d+)?)\)?\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
_RADIANS = r"(\\frac{\1\\pi}{180})"
_SET_BUILDER = re.compile(
    r"(?:\\left\s*)?\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid(?![a-zA-Z])|\||:)([^{}|:]+?)"
    r"(?:\\right\s*)?\\\}\Z"
)
_TIME = re.compile(r"0?(\d{1,2}:[0-5]\d)(?:\s*+(?:\\text\s*\{)?\s*([ap])\.?\s?m\.?\s*\}?)?", re.ASCII | re.IGNORECASE)
_TEXT = re.compile(r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf|it)|mbox)\s*\{([^{}]*)\}")
_RATIO = re.compile(r"(?<=\d)\s*to\s*(?=\d)")
_ANGLE = re.compile(r"-?\(?\d+(?:\.\d+)?\)?\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
_NAMED = re.compile(r"(\\[a-zA-Z]+|[a-zA-Z])\s*=([^=<>]+)")
_ROW = "\\\\"  # its end, in a matrix
_COLUMN = re.compile(r"\A\\begin\s*\{[pb]matrix\}([^&{}]*(?:\{[^&{}]*\}[^&{}]*)*)\\end\s*\{[pb]matrix\}\Z")
_IMAGINARY = re.compile(r"(?<=\d)i(?![a-zA-Z])")  # math-verify sees the imaginary unit only where it stands alone
_read = lru_cache(maxsize=4096)(plain_numbers.read)
_clean = lru_cache(maxsize=4096)(clean)


def fast_equal(gold: str, answer: str, *, labeled: bool = True) -> bool | None:
    """Return whether two answers are equal where that is obvious, None where it takes mathematics.

    Args:
        gold: The reference answer.
        answer: The answer to judge.
        labeled: Whether the letter of a multiple choice may stand in front.
    """
    gold, answer = _clean(gold), _clean(answer)
    if not gold or not answer:
        return False
    gold_number, answer_number = _read(gold), _read(answer)
    if gold_number and not answer_number:
        answer_number = plain_numbers.read_in_words(answer)
    if gold_number and answer_number:
        return answer_number.equals_gold(gold_number)
    if comparable(gold) == comparable(answer) or _flat(gold) == _flat(answer):
        return True
    gold_time, answer_time = _TIME.fullmatch(unwrap(gold)), _TIME.fullmatch(unwrap(answer))
    if gold_time and answer_time:
        return _same_time(gold_time, answer_time)
    unconditional = strip_conditions(gold, answer)
    if unconditional != (gold, answer):
        return unconditional is not None and fast_equal(*unconditional, labeled=labeled)
    gold, answer = _as_lists(gold, answer)
    if _BARE_LIST.fullmatch(gold) or _BARE_LIST.fullmatch(answer):
        return False  # math-verify would add the numbers up, as those of "1 1/2"
    numerals_equal = equal_numerals(gold, answer)
    if numerals_equal is not None:
        return numerals_equal
    if differ_in_kind(gold, answer):
        return False
    if labeled and _either_is_choice(gold, answer):
        return _by_choice(gold, answer)
    return _by_words_or_value(gold, answer)


def spelling_pair(gold: str, answer: str) -> tuple[str, str] | None:
    """Return both answers in the form that suits math-verify best, or None if units or conditions differ.

    Args:
        gold: The reference answer.
        answer: The answer to judge.
    """
    unconditional = strip_conditions(_clean(gold), _clean(answer))
    if unconditional is None:
        return None
    gold, answer = map(_both_signs, _as_lists(*map(equations_as_list, map(_clean, unconditional))))
    gold, answer = _without_name(gold, answer), _without_name(answer, gold)
    if _ANGLE.fullmatch(answer) and "\\pi" in gold:
        answer = _DEGREES.sub(_RADIANS, answer)
    elif _ANGLE.fullmatch(gold) and "\\pi" in answer:
        gold = _DEGREES.sub(_RADIANS, gold)
    pair = units.strip_units(as_set(gold), as_set(answer))
    if pair is None:
        return None
    gold, answer = map(_for_parser, tell_letters_apart(*pair))
    return gold, answer


def _for_parser(text: str) -> str:
    text = primes_as_indices(_IMAGINARY.sub(" i", strip_separators(clean(text))))
    text = _SET_BUILDER.sub(r"\1", text)
    if _TRIGONOMETRY.search(text):
        text = _DEGREES.sub(_RADIANS, text)
    return text.replace(",", "").replace(" ", "") if _read(text) and "\\" not in text else respell(text)


def _flat(text: str) -> str:
    r"""A text without commands around words, spaces and the word of a ratio: `8\\text{ hours}` as `8 hours`."""
    return _RATIO.sub(":", comparable(" ".join(_TEXT.sub(r" \1 ", text).split())))


def _same_time(gold: re.Match[str], answer: re.Match[str]) -> bool:
    """Return whether two times of day agree; half of a day that only one of them names is no difference."""
    halves = {half.lower() for half in (gold[2], answer[2]) if half}
    return gold[1].lstrip("0") == answer[1].lstrip("0") and len(halves) < 2


def _as_lists(gold: str, answer: str) -> tuple[str, str]:
    """Both with lists as Python writes them in the usual form: `[1, 2, 3]` is `(1, 2, 3)`, and `[1, 2]` for `1, 2` too.

    The reference `[1, 2]` may as well be an interval. A column is a tuple where the other is one.
    """
    if gold.startswith("(") != answer.startswith("("):
        gold, answer = _COLUMN.sub(_vector, gold), _COLUMN.sub(_vector, answer)
    gold, answer = _in_order(*join_thousands(gold, answer))
    bare = "," in gold and not re.search(r"[(\[{=<>]", gold)
    return _as_tuple(gold, 2), (answer[1:-1].strip() if bare and encloses(answer, "[", "]") else _as_tuple(answer, 2))


def _in_order(gold: str, answer: str) -> tuple[str, str]:
    """Both as tuples if the gold names its values, `x=1, y=2`, and the answer does not: `2, 1` gives them to others."""
    inside = answer[1:-1] if encloses(answer, "(", ")") else answer
    named = [_NAMED.fullmatch(part.strip()) for part in gold.split(",")] if "=" in gold else []
    names = [found[1] for found in named if found]
    ordered = len(names) == len(named) > 1 and names == sorted(set(names))
    if not ordered or "=" in answer or inside.count(",") != len(names) - 1:
        return gold, answer
    return f"({','.join(found[2] for found in named if found)})", f"({inside})"


def _both_signs(text: str) -> str:
    r"""A formula with a sign within a command, `\frac{1 \pm \sqrt5}{2}`, as the two values, which the parser reads."""
    before, sign, behind = text.partition("\\pm")
    if not sign or "," in text or "\\pm" in behind or "\\mp" in text or before.count("{") == before.count("}"):
        return text
    before = strip_assignment(before)
    return f"{before}+{behind}, {before}-{behind}"


def _without_name(text: str, other: str) -> str:
    return text if "=" in other else strip_assignment(text)


def _vector(column: re.Match[str]) -> str:
    return f"({column[1].strip().removesuffix(_ROW).replace(_ROW, ',')})"


def _as_tuple(text: str, commas: int) -> str:
    return (
        f"({text[1:-1]})" if encloses(text, "[", "]") and text.count(",") >= commas and "\\infty" not in text else text
    )


def _either_is_choice(gold: str, answer: str) -> bool:
    choices = [read_choice(unwrap(text)) for text in (gold, answer)]
    return all(choices) or any(choice is not None and choice[1] for choice in choices)


def _by_choice(gold: str, answer: str) -> bool | None:
    gold_choice, answer_choice = read_choice(unwrap(gold)), read_choice(unwrap(answer))
    if gold_choice and answer_choice:
        return gold_choice[0] == answer_choice[0]
    # One of them gives the letter and the value, the other one only the value.
    if gold_choice:
        return fast_equal(gold_choice[1], answer, labeled=False)
    return fast_equal(gold, answer_choice[1], labeled=False) if answer_choice else None


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
