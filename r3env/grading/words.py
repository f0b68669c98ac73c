r"""Answers that are words, such as `\text{Monday}` or `no`, and multiple-choice letters."""

import re

_COMMAND = re.compile(r"\\(?:text(?:bf|rm|it|normal|sf|tt)?|math(?:rm|bf|it|sf)|mbox|operatorname|bf|rm)(?![a-zA-Z])")
_SPACING = re.compile(r"(?:\s|\\[,;: !]|\\q?quad(?![a-zA-Z])|~)+")
_WORDS = re.compile(r"[^\W\d_]+(?:[ '\u2019-][^\W\d_]+)*")
# Two or three letters could be a product of variables, unless they are one of these.
_SHORT_WORDS = frozenset(
    "yes no true odd even none on off up down left right all any some sun mon tue wed thu fri sat win lose tie red blue"
    " never always both dne in out".split()
)
_SAME_WORDS = {"no solutions": "no solution", "no real solutions": "no real solution", "dne": "does not exist"}
_LABEL = re.compile(r"\(([A-J])\)(?P<rest>.*)|([A-J])(?:[.:)](?P<more>\s.*)?)?", re.DOTALL)
_MARKED_LABEL = re.compile(rf"(?:{_COMMAND.pattern})\s*\{{\s*\(?([A-J])\)?[.:]?\s*\}}[.:]?(.*)", re.DOTALL)
_OPERATION = tuple("+-*/^=<>_!,|")


def word(text: str) -> str | None:
    """The words that an answer consists of, in lower case with single spaces, or None if it may be mathematics."""
    bare = _bare(text).rstrip(".!")
    if not _WORDS.fullmatch(bare):
        return None
    marked = _COMMAND.search(text) is not None and len(bare) > 1
    folded = bare.casefold()
    if not marked and not any(len(part) >= 4 or part in _SHORT_WORDS for part in folded.split()):
        return None
    return _SAME_WORDS.get(folded, folded)


def choice(text: str) -> tuple[str, str] | None:
    r"""The letter of a multiple choice and what stands behind it: `\textbf{(B)}\ 12` is ("B", "12").

    Args:
        text: A cleaned answer.
    """
    marked = _MARKED_LABEL.fullmatch(text)
    if marked:
        rest = re.sub(rf"^{_SPACING.pattern}", "", marked[2])
        return None if rest.startswith(_OPERATION) else (marked[1], rest)
    found = _LABEL.fullmatch(text)
    if found is None:
        return None
    behind = found["rest"] or found["more"] or ""
    # `(C) + 5` and `(A)(B)` are products, sums and sets of things called A, B and C.
    if behind and (behind.strip().startswith(_OPERATION) or not re.match(_SPACING, behind)):
        return None
    return found[1] or found[3], re.sub(rf"^{_SPACING.pattern}", "", behind)


def _bare(text: str) -> str:
    without_commands = _COMMAND.sub(" ", text)
    if without_commands != text:
        without_commands = without_commands.replace("{", " ").replace("}", " ")
    return _SPACING.sub(" ", without_commands).strip()
