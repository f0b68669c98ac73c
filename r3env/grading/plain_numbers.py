r"""Numbers that need no mathematics to be compared: decimals, fractions, percentages, powers of ten.

A number may differ from the reference only where digits had to be cut off.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_DIGITS = r"(?:[1-9]\d{0,2}(?:[, ]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
_BRACED = rf"\{{\s*([+-]?{_DIGITS})\s*\}}"
_SCIENTIFIC = r"(?:[eE]|\s*(?:\\times|\\cdot|\*)\s*10\s*\^)(?P<power>\{\s*[+-]?\d{1,3}\s*\}|[+-]?\d{1,3})"
_NUMBER = re.compile(
    rf"(?P<sign>(?:[+-]\s?)?)(?:(?P<whole>{_DIGITS})(?:{_SCIENTIFIC})?)?"
    rf"(?:\s*\\[dtc]?frac\s*(?:{_BRACED}\s*{_BRACED}|(\d)\s*(\d)|(\d)\s*{_BRACED}|{_BRACED}\s*(\d)))?"
    rf"(?:\s*/\s*(?P<under>{_DIGITS}))?(?P<percent>\s*\\?%)?",
    re.ASCII,
)
_REPEATING = re.compile(r"([+-]?)(\d+)\.(\d*)\\(?:overline|bar)\s*\{(\d+)\}(?P<percent>\s*\\?%)?", re.ASCII)
_DOTTED = re.compile(r"([+-]?)(\d+)\.(\d*)\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?", re.ASCII)
_GOES_ON = re.compile(r"([+-]?)(\d+)\.(\d*?)(?:(\d)\4{2,}|(\d{2,6})\5+)(?:\.\.\.|\u2026|\\[lc]?dots)", re.ASCII)
_IN_WORDS = re.compile(r"([+-]?\d+)\s*(?:\\text\s*\{\s*and\s*\}|and)\s*(\\[dt]?frac.*|\d+\s?/\s?\d+)", re.ASCII)
_REMAINDER = re.compile(r"([+-]?\d+)\s*\\bmod\s*(\d+)", re.ASCII)
_POWER_OF_TEN = re.compile(r"([+-]?)10\s*\^\s*(\{\s*[+-]?\d{1,3}\s*\}|[+-]?\d{1,3})", re.ASCII)
DECIMAL_PLACES = 6  # to which math-verify rounds floats
_CLOSENESS = Fraction(1, 10_000)  # small numbers are not equal just because both round to zero
_LONGEST = 80  # characters; longer numbers are left to the grader processes


@dataclass(frozen=True)
class PlainNumber:
    """A number as written.

    Args:
        value: Its exact value, a percentage not divided by 100.
        rounded: Whether it has a decimal point, so that digits may have been cut off.
        percent: Whether a percent sign follows.
    """

    value: Fraction
    rounded: bool
    percent: bool

    def equals_gold(self, gold: "PlainNumber") -> bool:
        """Return whether this number equals the gold as an answer: rounded where allowed, and 50% equals 50 and 0.5.

        Integers are exact, as in math-verify: 2.9999999 is not 3.
        """
        if self._close(self.value, gold, gold.value):
            return True
        if self.percent == gold.percent:
            return False
        if self.percent:
            return self._close(self.value / 100, gold, gold.value)
        return self._close(self.value, gold, gold.value / 100)

    def _close(self, value: Fraction, gold: "PlainNumber", gold_value: Fraction) -> bool:
        if value == gold_value:
            return True
        whole = self._whole() or gold._whole()
        return not whole and (self.rounded or gold.rounded) and equal_when_rounded(gold_value, value)

    def _whole(self) -> bool:
        return not self.rounded and self.value.denominator == 1


def read(text: str) -> PlainNumber | None:
    r"""Return the number in a whole text, or None: `-1,234.5`, `3/4`, `1\frac{1}{2}`, `2\times10^{-3}`, `5\%`.

    Args:
        text: An answer in the spelling that `r3env.grading.normalization.clean` gives it.
    """
    found = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return _rarely_written(text)
    whole, under, power = found["whole"], found["under"], found["power"]
    parts = [part for part in found.groups()[3:11] if part is not None]  # of `\frac`, above and below
    if (whole is None and not parts) or (under and parts) or (power and (parts or under)):
        return None
    value = _fraction(whole) if whole else Fraction(0)
    below = _fraction(under or (parts[1] if parts else "1"))
    if below == 0 or (whole and parts and not whole.isdecimal()):
        return None
    value = value + _fraction(parts[0]) / below if parts else value / below
    if power:
        value *= Fraction(10) ** int(power.strip("{ }"))
    if found["sign"].startswith("-"):
        value = -value
    return PlainNumber(value, "." in text.rstrip(". "), found["percent"] is not None)


def _rarely_written(text: str) -> PlainNumber | None:
    if len(text) > _LONGEST:
        return None
    remainder = _REMAINDER.fullmatch(text)
    if remainder and int(remainder[2]):
        return PlainNumber(Fraction(int(remainder[1]) % int(remainder[2])), False, False)
    if power := _POWER_OF_TEN.fullmatch(text):
        value = Fraction(10) ** int(power[2].strip("{ }"))
        return PlainNumber(-value if power[1] == "-" else value, False, False)
    found = _REPEATING.fullmatch(text) or _DOTTED.fullmatch(text) or _GOES_ON.fullmatch(text)
    if found is None:
        return None
    percent = found.groupdict().get("percent") or ""
    sign, whole, fixed, *parts = found.groups(default="")
    repeated = "".join(parts).removesuffix(percent)
    value = int(whole + fixed) + Fraction(int(repeated), 10 ** len(repeated) - 1)
    return PlainNumber((-value if sign == "-" else value) / 10 ** len(fixed), False, bool(percent))


def read_in_words(text: str) -> PlainNumber | None:
    r"""Return the mixed number that "and" joins, `2 \text{ and } \frac{1}{2}`; None for another text.

    Only where one number is expected: elsewhere these are two answers.

    Args:
        text: A cleaned answer.
    """
    found = _IN_WORDS.fullmatch(text) if len(text) <= _LONGEST else None
    whole, part = (read(found[1]), read(found[2])) if found else (None, None)
    if not found or whole is None or part is None or not 0 < part.value < 1:
        return None
    value = whole.value - part.value if found[1].startswith("-") else whole.value + part.value
    return PlainNumber(value, False, False)


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", "").rstrip("."))


def may_be_rounded(gold: Fraction | None, answer: Fraction | None) -> bool:
    """Return whether two different numbers may still be the same answer, one of them rounded.

    A finite decimal is no rounding of 1/2: it has to be 1/2. But it may be one of 1/3; and a reference with six or more
    decimals, such as 0.333333, may be one itself, if the answer has no end.

    Args:
        gold: The exact value of the reference, None if it is irrational.
        answer: That of the answer, None if it is irrational.
    """
    places = _decimal_places(gold)
    return places is None or (places >= DECIMAL_PLACES and _decimal_places(answer) is None)


def equal_when_rounded(gold: Fraction, answer: Fraction) -> bool:
    """Return whether two rational numbers are equal except for an allowed rounding.

    Args:
        gold: The reference.
        answer: The answer to judge.
    """
    near = abs(gold - answer) <= _CLOSENESS * max(abs(gold), abs(answer))
    return near and may_be_rounded(gold, answer) and round(gold, DECIMAL_PLACES) == round(answer, DECIMAL_PLACES)


def _decimal_places(value: Fraction | None) -> int | None:
    """Return the decimals that it takes to write a number, None if there is no end to them."""
    if value is None:
        return None
    below, counts = value.denominator, []
    for factor in (2, 5):
        count = 0
        while below % factor == 0:
            below, count = below // factor, count + 1
        counts.append(count)
    return max(counts) if below == 1 else None
