"""Recognize problems that differ in their numbers alone: a score on one says little where the other was trained on."""

import re

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FEWEST_WORDS = 5


def template(problem: str) -> str | None:
    """Return a problem without its numbers, spaces and upper case; None where it has too few words to be a text."""
    if sum(1 for _ in zip(_WORD.finditer(problem), range(_FEWEST_WORDS), strict=False)) < _FEWEST_WORDS:
        return None
    return "".join(_NUMBER.sub("#", problem.casefold()).split())
