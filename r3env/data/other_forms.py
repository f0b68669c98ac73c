r"""A reference answer written differently, as a policy may write it: what a grader should pay as well."""

import re
from decimal import Decimal
from fractions import Fraction

BARE, UNIT, OTHER = "bare", "with a unit", "in another format"
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_FRACTION = re.compile(r"(?P<sign>-?)(?:\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d+)\s*/\s*(\d+))")
_DECORATION = re.compile(r"\\(?:left|right)(?![a-zA-Z])|\\[!,;: ]|(?<!\\)\$|\\displaystyle")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_MOST_WORDS = 12  # of an answer; a longer text is one that nobody writes word for word


def other_forms(answer: str) -> dict[str, str]:
    r"""Return up to three other ways to write an answer, each as the content of a box, by what is different.

    `bare` is without delimiters and decoration, `with a unit` is a number with one, `in another format` is `18.0` for
    `18`, `1/2` for `\frac{1}{2}` and for `0.5`, `\text{True}` for `True`, and a formula between dollar signs.
    """
    plain = answer.strip()
    bare = " ".join(_DECORATION.sub(" ", plain).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").split())
    number = re.sub(r"(?<=\d)(?:,|\{,\}|\\,|\\!,)(?=\d{3}(?!\d))", "", bare)
    forms = {BARE: bare}
    if _NUMBER.fullmatch(number):
        forms[BARE] = number
        forms[UNIT] = f"{number} \\text{{ units}}"
        forms[OTHER] = _other_number(number)
    elif found := _FRACTION.fullmatch(bare):
        forms[UNIT] = f"{bare} \\text{{ units}}"
        forms[OTHER] = _other_fraction(bare, found)
    elif bare.isalpha() and len(bare) > 1:
        forms[OTHER] = f"\\text{{{bare}}}"
    else:
        forms[OTHER] = f"${bare}$"
    return {name: form for name, form in forms.items() if form != plain and form}


def is_prose(answer: str) -> bool:
    """Return whether an answer is a text that nobody writes word for word, such as a whole solution."""
    return "boxed" not in answer and len(_WORD.findall(answer)) > _MOST_WORDS


def _other_number(number: str) -> str:
    value = Decimal(number)
    if value == value.to_integral_value():
        return f"{int(value):,}" if abs(value) >= 1000 else f"{int(value)}.0"
    fraction = Fraction(value)
    sign = "-" if fraction < 0 else ""
    return f"{sign}\\frac{{{abs(fraction.numerator)}}}{{{fraction.denominator}}}"


def _other_fraction(bare: str, found: re.Match[str]) -> str:
    above, below = [int(part) for part in found.groups()[1:] if part]
    if "frac" in bare:
        return f"{found['sign']}{above}/{below}"
    return f"{found['sign']}\\frac{{{above}}}{{{below}}}"
