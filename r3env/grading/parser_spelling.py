r"""Spellings that keep the parser of math-verify from reading what is not meant.

It takes `2(3)` for a mixed number, `\gamma-1` for a function of it, `E_1` for no name, the `dn` of `dnk` for a
differential, and a capital for the small letter.
"""

import re

_NUMBER = r"(?:(?<![\d._^])(?<!_\{)\d+|(?<=[\d}])\\pi(?![a-zA-Z]))"
_BINOMIAL = r"\\binom\{[^{}]*\}\{[^{}]*\}"
_OPENS = r"(?:\\left\s*)?\(\s*(?:\d|\\[dt]?frac(?![a-zA-Z])|\\binom)"
_RESPELLED = (
    (
        re.compile(
            rf"{_NUMBER}(?=\s*(?:{_OPENS}|\\binom))"
            rf"|(?:\(\s*-?\d+\s*(?:\\right\s*)?\)|{_BINOMIAL})(?=\s*(?:{_OPENS}|\\binom|\\[dt]?frac(?![a-zA-Z])|\d))"
            r"|\\[dt]?frac\{\d+\}\{\d+\}(?=\s*(?:\\left\s*)?\()"
        ),
        r"\g<0>\\cdot ",
    ),
    (re.compile(r"\\([gG]amma)(?![a-zA-Z]|\s*(?:\\left\s*)?\()"), r"\\mathrm{\1}"),
    (re.compile(r"(?<![a-zA-Z\\])[Ee](?=\s*_)"), r"\\mathrm{E}"),
)
_SKIPPED = r"\\(?:text|math|operator|mbox)[a-z]*\s*\{[^{}]*\}|\\[a-zA-Z]+|_\s*(?:\{[^{}]*\}|\w)"
_LETTER = re.compile(rf"{_SKIPPED}|([a-zA-Z])(?!\s*+(?:\{{\s*+)?(?:\\left\s*)?\()")
_ANY_LETTER = re.compile(rf"{_SKIPPED}|([a-zA-Z])")
_FACTOR_D = re.compile(rf"{_SKIPPED}|(d)(?!\s*(?:[a-zA-Z]|\\(?!cdot|times|sqrt|[dt]?frac)))")
_ANY_D = re.compile(rf"{_SKIPPED}|(d)(?=\s*[a-zA-Z\\])")
_DIFFERENTIAL = re.compile(
    r"\\i+nt(?![a-zA-Z])|\\oint|\\(?:mathrm|text)\s*(?:\{\s*)?d\s*\}|d[^{}/]{0,20}(?:\}\s*)?[/{]\s*d[\s\\a-zA-Z]"
)


def respell(text: str) -> str:
    r"""Return a cleaned text as the parser reads it: `2\cdot (3)`, `\mathrm{gamma}-1`, `\mathrm{E}_1`."""
    for pattern, replacement in _RESPELLED:
        text = pattern.sub(replacement, text)
    return text


def tell_letters_apart(gold: str, answer: str) -> tuple[str, str]:
    r"""Return both with capitals renamed that one of them has beside the small letter, and with `d` as a factor.

    A `d` before a letter is a differential, unless one of them has it elsewhere: `\frac{nd}{2}`, but not `x\,dx`.
    """
    both = {
        letter
        for letters in ({found[1] for found in _LETTER.finditer(text) if found[1]} for text in (gold, answer))
        for letter in letters
        if letter.isupper() and letter.lower() in letters
    }
    if both:
        gold, answer = (_ANY_LETTER.sub(lambda found: _renamed(found, both), text) for text in (gold, answer))
    texts = gold, answer
    if any(found[1] for text in texts for found in _FACTOR_D.finditer(text)) and not any(
        map(_DIFFERENTIAL.search, texts)
    ):
        gold, answer = (_ANY_D.sub(lambda found: "{d}" if found[1] else found[0], text) for text in texts)
    return gold, answer


def _renamed(found: re.Match[str], letters: set[str]) -> str:
    return rf"\mathrm{{capital{found[1]}}}" if found[1] in letters else found[0]
