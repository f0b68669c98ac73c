r"""Numerals with a base, such as `1010_2`, which math-verify reads without it."""

import re

from r3env.grading.normalization import without_assignment

_WORDS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
_NAME = "|".join(_WORDS)
_NUMERAL = re.compile(
    r"(?P<open>\()?\s*(?P<digits>\d[\dA-F]*)\s*(?(open)\))\s*_\s*"
    rf"(?:(?P<base>\d)|\{{\s*(?:(?P<braced>\d+)|\\(?:text|mathrm)\s*\{{\s*(?P<word>{_NAME})\s*\}})\s*\}})",
    re.ASCII,
)
_SUBSCRIPT_OF_A_NUMBER = re.compile(
    r"(?<![\^_\d.a-zA-Z\\])(?<!\^\{)\d+(?:\.\d+)?(?:\s*\^\s*(?:\{[^{}]*\}|\d))?\s*\)?\s*_", re.ASCII
)
_ONLY_DIGITS = re.compile(r"\d[\dA-F,]*", re.ASCII)


def by_base(gold: str, answer: str) -> bool | None:
    r"""Whether two numerals are the same in the same base, None if neither has one.

    The reference says what base was asked for, so `1010` answers `1010_2`; the other way round it would be ten for a
    thousand and ten. Anything else with a subscript behind a number equals only its own spelling.

    Args:
        gold: The reference answer, cleaned.
        answer: The answer to judge, cleaned; not spelled as the gold.
    """
    if not (_SUBSCRIPT_OF_A_NUMBER.search(gold) or _SUBSCRIPT_OF_A_NUMBER.search(answer)):
        return None
    gold_numeral, answer_numeral = _numeral(gold), _numeral(answer)
    if gold_numeral and answer_numeral:
        return gold_numeral == answer_numeral
    bare = without_assignment(answer)
    return bool(gold_numeral and _ONLY_DIGITS.fullmatch(bare) and _digits(bare) == gold_numeral[0])


def _numeral(text: str) -> tuple[str, int] | None:
    found = _NUMERAL.fullmatch(without_assignment(text))
    if found is None:
        return None
    written = found["base"] or found["braced"] or found["word"]
    return _digits(found["digits"]), _WORDS.index(written) + 2 if written in _WORDS else int(written[:9])


def _digits(written: str) -> str:
    return written.replace(",", "").lstrip("0") or "0"
