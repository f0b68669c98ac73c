r"""A reference answer written differently, as a policy may write it: what a grader should pay as well."""

import re
from decimal import Decimal
from fractions import Fraction

BARE, UNIT, OTHER = "bare", "with a unit", "in another format"
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_FRACTION = re.compile(r"(?P<sign>-?)(?:\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d+)\s*/\s*(\d+))")
_DECORATION = re.compile(r"\\(?:left|right)(?![a-zA-Z])|\\[!,;: ]|(?<!\\)\$|\\displaystyle")
# What a policy leaves out: the name before a value, a unit or a noun behind a number, the command around a word.
_NAMED = re.compile(r"(?:\\[a-zA-Z]+|[a-zA-Z])(?:_(?:\w|\{\w+\}))?\s*=\s*(?P<value>[^=]+)")
_NOUN = r"\(\s*[a-zA-Z][a-zA-Z ]*\)|(?:\\(?:text|mathrm)\s*\{\s*)?[a-zA-Z]{2,12}\s*\}?"
_WITH_NOUN = re.compile(rf"(?P<value>[-+]?\d[\d,]*(?:\.\d+)?)\s*(?:{_NOUN})")
_WORD_COMMAND = re.compile(r"\\(?:text|mathrm|textbf)\s*\{\s*(?P<value>[a-zA-Z][a-zA-Z ]*)\}")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_OBJECT = re.compile(r'\{\s*"[^"]*"\s*:')
_MOST_WORDS = 12  # of an answer; a longer text is one that nobody writes word for word
_LONGEST = 2000  # characters; longer answers have no other form


def other_forms(answer: str) -> dict[str, str]:
    r"""Return up to three other ways to write an answer, each as the content of a box, by what is different.

    `bare` is without delimiters and decoration, the name of a value, and the noun behind a number; `with a unit` a
    number with one. `in another format` is `18.0` for `18`, `1/2` for `\frac{1}{2}`, `\frac{1}{2}` for `0.5`,
    `\text{True}` for `True`, and a formula between dollar signs.
    """
    plain = answer.strip()
    if len(plain) > _LONGEST:
        return {}
    bare = " ".join(_DECORATION.sub(" ", plain).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").split())
    named = next(filter(None, (part.fullmatch(bare) for part in (_NAMED, _WITH_NOUN, _WORD_COMMAND))), None)
    bare = named["value"].strip() if named else bare
    number = re.sub(r"(?<=\d)(?:,|\{,\}|\\,|\\!,)(?=\d{3}(?!\d))", "", bare)
    forms = {BARE: bare}
    if _NUMBER.fullmatch(number):
        forms = {BARE: number, UNIT: f"{number} \\text{{ units}}", OTHER: _other_number(number)}
    elif found := _FRACTION.fullmatch(bare):
        forms[UNIT] = f"{bare} \\text{{ units}}"
        forms[OTHER] = _other_fraction(bare, found)
    elif bare.isalpha() and len(bare) > 1:
        forms[OTHER] = f"\\text{{{bare}}}"
    else:
        forms[OTHER] = f"${bare}$"
    if _WITH_NOUN.fullmatch(plain):
        forms.pop(UNIT, None)  # `5 units` is not `5 cm`
    return {name: form for name, form in forms.items() if form not in ("", plain)}


def is_prose(answer: str) -> bool:
    """Return whether an answer is a text that nobody writes word for word: a whole solution, or an object's JSON."""
    return "boxed" not in answer and (len(_WORD.findall(answer)) > _MOST_WORDS or _OBJECT.match(answer) is not None)


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
