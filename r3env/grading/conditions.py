r"""Conditions behind an answer: `f(x)=cx \text{ for any constant } c` is the formula `f(x)=cx`.

Only what says which values a name takes is left out: "for any constant c", "where c is a real number", ", k \in
\mathbb{Z}". What distinguishes cases, as "if n is even", "for x < 0" or "when c = 0", stays part of the answer.
"""

import re
from typing import NamedTuple

_KINDS = {
    "natural": r"natural|positive\s+integers?|\\mathbb\s*\{?N\}?|\\mathbb\s*\{?Z\}?\s*+[_^]?\s*+\{?\s*\+\s*\}?",
    "integer": r"integers?|whole|\\mathbb\s*\{?Z\}?",
    "real": r"reals?|\\mathbb\s*\{?R\}?",
    "rational": r"rationals?|\\mathbb\s*\{?Q\}?",
    "complex": r"complex|\\mathbb\s*\{?C\}?",
}
_LETTER = r"(?:\\(?:alpha|beta|gamma|delta|lambda|mu|theta|varphi|phi|omega)|[a-zA-Z])(?:_(?:\w|\{\w+\}))?(?![a-zA-Z])"
_NAMES = rf"\$?{_LETTER}(?:\s*(?:,\s*(?:and\s+)?|and\s+){_LETTER})*\$?"
_ADJECTIVE = r"(?:real|complex|rational|arbitrary|fixed|given|positive|negative|non-?negative|non-?zero|natural|whole)"
_NOUN = r"(?:numbers?|constants?|integers?|reals?|rationals?|values?|parameters?)"
_KIND = rf"(?:{_ADJECTIVE}[\s-]+)*(?:{_NOUN}|{_ADJECTIVE})(?:\s+of)?"
_SET = r"\\mathbb\s*\{?[RZNQC]\}?(?:\s*[_^]\s*+(?:\{?\s*[+*]\s*\}?))?"
_MEMBER = rf"{_NAMES}\s*\\in(?![a-zA-Z])\s*{_SET}"
_BOUND = r"(?:\s*(?:\\(?:ge|geq|geqslant|ne|neq|gt)(?![a-zA-Z])|>=?)\s*-?\d+)"
_QUANTIFIED = rf"(?:any|all|every|each|arbitrary)\s+(?:(?:{_KIND}\s+)?{_NAMES}{_BOUND}?|{_MEMBER}|{_KIND})"
_CHOSEN = rf"(?:some|an?|any)\s+(?:{_KIND}(?:\s+{_NAMES})?|{_MEMBER})|{_KIND}\s+{_NAMES}|{_MEMBER}"
_DEFINED = rf"{_NAMES}\s+(?:is|are|being|can\s+be|may\s+be)\s+(?:an?\s+|any\s+|some\s+)*{_KIND}|{_MEMBER}"
_CONDITION = re.compile(
    rf"(?P<comma>[,;]|\.(?=\s))?\s*(?P<condition>\(?\s*(?:(?:for|with)\s+(?:{_QUANTIFIED}|{_CHOSEN})"
    rf"|(?:where|with|here|for)\s+(?:{_DEFINED}))\s*\)?|(?<=[,;(\s])\(?(?:{_DEFINED})\)?)\s*\.?\s*\Z",
)
_STARTS = re.compile(r"(?<![a-zA-Z\\])(?:for|with|where|here)(?![a-zA-Z])|[,;(]\s*(?=\\?[a-zA-Z])|\\quad")
_TEXT = re.compile(r"\\(?:text[a-z]*|math(?:rm|it)|mbox)\s*\{([^{}]*)\}|\\(?:forall)(?![a-zA-Z])")
_OPEN_TEXT = re.compile(r"(?:\\(?:text[a-z]*|math(?:rm|it)|mbox)\s*\{[^{}]*|\\q?quad|[\s,;.(])\Z")
_SET_OR_WORD = re.compile(
    rf"{_SET}|\\(?:in|ge|ne|geq|neq|gt|geqslant)(?![a-zA-Z])|[a-zA-Z]{{2,}}|(?<![a-zA-Z])a(?=\s+[a-z]{{3}})"
)
_LONGEST = 400  # characters; longer answers keep their conditions


class _Split(NamedTuple):
    formula: str
    kind: str  # of the numbers that the names are; empty where it is not said


def strip_conditions(gold: str, answer: str) -> tuple[str, str] | None:
    """Return both answers without conditions on named constants, or None if these are different kinds of numbers.

    Args:
        gold: The reference answer, cleaned.
        answer: The answer to judge, cleaned.
    """
    one, other = _split(gold), _split(answer)
    if one.kind and other.kind and one.kind != other.kind:
        return None
    return one.formula, other.formula


def _split(text: str) -> _Split:
    if len(text) > _LONGEST:
        return _Split(text, "")
    # Of the same length, so that places in it are places in the text.
    flat = _TEXT.sub(_spaced, text)
    for start in _STARTS.finditer(flat):
        found, formula = _CONDITION.match(flat, start.start()), _formula(text[: start.start()])
        if found and formula and _concerns(found["condition"], formula):
            return _Split(formula, _kind(found["condition"]))
    return _Split(text, "")


def _spaced(command: re.Match[str]) -> str:
    inside = command[1]
    if inside is None:  # a quantifier
        return "for all".ljust(len(command[0]))
    return inside.rjust(len(command[0]) - 1) + " "


def _formula(before: str) -> str:
    while cut := _OPEN_TEXT.search(before):
        before = before[: cut.start()]
    balanced = all(before.count(a) == before.count(b) for a, b in ("{}", "()", "[]"))
    return before if balanced and re.search(r"[\d=]|[a-zA-Z]", before) else ""


def _concerns(condition: str, formula: str) -> bool:
    r"""Whether a name of the condition is in the formula, and that is more than names, as in `x, y \in \mathbb{Z}`."""
    bare = _SET_OR_WORD.sub(" ", condition)
    names = re.findall(_LETTER, bare)
    return not re.fullmatch(_NAMES, formula) and (not names or any(_occurs(name, formula) for name in names))


def _occurs(name: str, formula: str) -> bool:
    return (
        re.search(rf"(?<![a-zA-Z\\]){re.escape(name)}" if name.startswith("\\") else re.escape(name), formula)
        is not None
    )


def _kind(condition: str) -> str:
    return next((name for name, words in _KINDS.items() if re.search(words, condition)), "")
