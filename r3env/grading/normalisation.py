r"""Cheap equality of short answers: spelling variants of the same text, and plain numbers.

Everything here takes linear time on any input, so that it may run in the training process itself.
"""

import re
from decimal import Decimal

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\u3000", " "),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        "\u00b0": "^{\\circ}",
        "\uff0c": ",",
        "\uff08": "(",
        "\uff09": ")",
        "\u200b": "",
    }
)
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("{", "}"))
_REWRITES = (
    (re.compile(r"\\!"), ""),
    (re.compile(r"(?<=\d)(?:\\[,;: ]|~|\{,\})(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad(?![a-zA-Z])"), " "),
    (re.compile(r"\\degree(?![a-zA-Z])"), r"^{\\circ}"),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"^\s*(?:\\approx(?![a-zA-Z])|\u2248|=)"), ""),
)
_ONLY_FOR_COMPARING = (
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])"), ""),
    (re.compile(r"(?<!\d)\s+|\s+(?!\d)"), ""),
)
_TEXT = re.compile(r"\\(?:text(?:bf|rm|it|normal)?|math(?:rm|bf|it)|mbox)\s*\{([^{}]*)\}")
_ASSIGNED = re.compile(r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?\s*=(?!=)\s*")
_UNIT = re.compile(r"\s*(?:\\?%|\^\s*(?:\{\s*\\circ\s*\}|\\circ))$")
_CURRENCY = re.compile(r"^(?:\\?\$|[\u20ac\u00a3])\s*")
_NUMBER = re.compile(r"[+-]?\s?(?:[1-9]\d{0,2}(?:[, ]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)", re.ASCII)
_CLOSING_STOP = re.compile(r"(?<![.,;\s\\])\s*[.,;]$")  # but not an ellipsis
_BARE_LIST = re.compile(r"[\d.]+(?:\s+[\d.]+)+", re.ASCII)
_LONGEST_NUMBER = 28  # significant digits of the default decimal context
_DECIMAL_PLACES = Decimal("1e-6")  # to which math-verify rounds floats


def clean(text: str) -> str:
    """The same mathematics in one spelling: plain minus signs and spaces, no delimiters or closing stop."""
    text = text.translate(_CHARACTERS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _CLOSING_STOP.sub("", text.strip())
    for opening, closing in _WRAPPERS:
        if _encloses(text, opening, closing):
            text = text[len(opening) : -len(closing)].strip()
    return _CLOSING_STOP.sub("", text)


def quick_equal(gold: str, answer: str) -> bool | None:
    """Whether two answers are equal where that is plain to see, None where it takes mathematics.

    Args:
        gold: The reference answer.
        answer: The answer to judge.
    """
    gold, answer = clean(gold), clean(answer)
    if not gold or not answer:
        return False
    gold_number, answer_number = _number(gold), _number(answer)
    if gold_number is not None and answer_number is not None:
        return _numbers_equal(gold_number, answer_number)
    if _comparable(gold) == _comparable(answer):
        return True
    if _BARE_LIST.fullmatch(gold) or _BARE_LIST.fullmatch(answer):
        return False  # math-verify would add the numbers up, as those of "1 1/2"
    return _equal_but_for_trimmings(gold, answer) or None


def plain_spelling(text: str) -> str:
    """`clean(text)`, and a number without separators, as math-verify is best given it."""
    text = clean(text)
    return text.replace(",", "").replace(" ", "") if _NUMBER.fullmatch(text) else text


def _equal_but_for_trimmings(gold: str, answer: str) -> bool:
    r"""Whether the two are the same number but for `x =`, `\text{}`, a currency, a percent or degree sign."""
    if "=" not in gold:
        answer = _without_assignment(answer)
    elif "=" not in answer:
        gold = _without_assignment(gold)
    gold_number, answer_number = _number(_trimmed(gold)), _number(_trimmed(answer))
    if gold_number is None or answer_number is None:
        return False
    return _numbers_equal(gold_number, answer_number)


def _number(text: str) -> Decimal | None:
    if len(text) > 2 * _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text.replace(",", "").replace(" ", ""))
    return number if len(number.as_tuple().digits) <= _LONGEST_NUMBER else None


def _numbers_equal(gold: Decimal, answer: Decimal) -> bool:
    if gold == answer:
        return True
    # Integers are exact, as in math-verify; so are numbers too long to be rounded.
    both_decimals = all(isinstance(e := n.as_tuple().exponent, int) and e < 0 for n in (gold, answer))
    if not both_decimals or max(abs(gold), abs(answer)) >= 10**20:
        return False
    return gold.quantize(_DECIMAL_PLACES) == answer.quantize(_DECIMAL_PLACES)


def _comparable(text: str) -> str:
    text = _unwrapped(text)
    for pattern, replacement in _ONLY_FOR_COMPARING:
        text = pattern.sub(replacement, text)
    return text


def _trimmed(text: str) -> str:
    return clean(_UNIT.sub("", _CURRENCY.sub("", _unwrapped(text))))


def _unwrapped(text: str) -> str:
    whole = _TEXT.fullmatch(text)
    return whole.group(1).strip() if whole else text


def _without_assignment(text: str) -> str:
    assigned = _ASSIGNED.match(text)
    return text[assigned.end() :] if assigned and text.count("=") == 1 else text


def _encloses(text: str, opening: str, closing: str) -> bool:
    """Whether the delimiters at both ends belong together, unlike those of `$1$ or $2$` and `{1},{2}`."""
    if len(text) < len(opening) + len(closing) or not (text.startswith(opening) and text.endswith(closing)):
        return False
    inside = text[len(opening) : -len(closing)]
    if inside.endswith("\\"):  # the last delimiter is escaped: `5\$`, `{1,2\}`
        return False
    if opening == closing:
        return opening not in inside
    depth = 0
    for mark in re.finditer(rf"(?<!\\){re.escape(opening)}|(?<!\\){re.escape(closing)}", inside):
        depth += 1 if mark.group() == opening else -1
        if depth < 0:
            return False
    return depth == 0
