r"""Inequalities joined by "or" or "and", as the union or intersection of intervals: `x < -1 \text{ or } x \ge 2`."""

import re

from r3env.grading import plain_numbers

_OR = re.compile(r"(?:(?<!\s)\s+)?(?:\\text\s*\{\s*or\s*\}|\\(?:lor|vee)(?![a-zA-Z])|(?<![a-zA-Z])or(?![a-zA-Z]))\s*")
_AND = re.compile(
    r"(?:(?<!\s)\s+)?(?:\\text\s*\{\s*and\s*\}|\\(?:land|wedge)(?![a-zA-Z])|(?<![a-zA-Z])and(?![a-zA-Z]))\s*"
)
_RELATION = r"\s*(<|>|\\(?:le|ge|lt|gt|leq|geq|leqslant|geqslant)(?![a-zA-Z]))\s*+"
_BOUND = r"([^<>=,;]*?[^<>=,;\s])"
_NAME = r"([a-zA-Z]|\\theta|\\alpha)"
_ONE_SIDED = re.compile(rf"{_NAME}{_RELATION}{_BOUND}")
_REVERSED = re.compile(rf"{_BOUND}{_RELATION}{_NAME}")
_TWO_SIDED = re.compile(rf"{_BOUND}{_RELATION}{_NAME}{_RELATION}{_BOUND}")
_COMMA = re.compile(r"(?:(?<!\s)\s+)?,\s*")
_LONGEST = 200


def as_set(text: str) -> str:
    r"""Return `(-\infty,-1)\cup[2,\infty)` for inequalities of one name that "or" joins, or "and" does.

    A comma joins as "and" does where the numbers allow both, `x<2, x>1`. `2>x>1` becomes `1<x<2`. Other texts are
    returned as they are, also those in which both words stand.

    Args:
        text: A cleaned answer.
    """
    if len(text) > _LONGEST:
        return text
    if (found := _TWO_SIDED.fullmatch(text)) and not (_rises(found[2]) or _rises(found[4])):
        high, first, name, second, low = found.groups()
        return f"{low} {_turned(second)} {name} {_turned(first)} {high}"
    for word, operation in ((_OR, "\\cup"), (_AND, "\\cap"), (_COMMA, "\\cap")):
        parts = word.split(text)
        read = [_interval(part) for part in parts] if len(parts) > 1 else []
        if read and all(read) and len({one[0] for one in read if one}) == 1:
            if word is _COMMA and not _overlap([one[1] for one in read if one]):
                return text
            return operation.join(one[1] for one in read if one)
    return text


def _overlap(intervals: list[str]) -> bool:
    """Return whether two intervals, one up to a number and one from a number, have a number in common."""
    if len(intervals) != 2:
        return False
    above, below = sorted(intervals, key=lambda interval: not interval.endswith("\\infty)"))
    if not above.endswith("\\infty)") or not below.startswith("(-\\infty,"):
        return False
    low, high = plain_numbers.read(above[1:].partition(",")[0]), plain_numbers.read(below[:-1].rpartition(",")[2])
    return low is not None and high is not None and low.value < high.value


def _interval(part: str) -> tuple[str, str] | None:
    """Return the name and the interval of one inequality, None if it is none."""
    if (found := _TWO_SIDED.fullmatch(part)) and _rises(found[2]) == _rises(found[4]):
        ends = (found[1], found[2], found[4], found[5])
        low, first, second, high = ends if _rises(found[2]) else ends[::-1]
        return found[3], f"{_open(first)}{low},{high}{_close(second)}"
    if found := _ONE_SIDED.fullmatch(part):
        name, relation, bound, above = found[1], found[2], found[3], not _rises(found[2])
    elif found := _REVERSED.fullmatch(part):
        bound, relation, name, above = found[1], found[2], found[3], _rises(found[2])
    else:
        return None
    return name, f"{_open(relation)}{bound},\\infty)" if above else f"(-\\infty,{bound}{_close(relation)}"


def _rises(relation: str) -> bool:
    return relation.startswith(("<", "\\l"))


def _turned(relation: str) -> str:
    return relation.replace(">", "<").replace("\\g", "\\l")


def _open(relation: str) -> str:
    return "(" if relation in ("<", ">", "\\lt", "\\gt") else "["


def _close(relation: str) -> str:
    return ")" if relation in ("<", ">", "\\lt", "\\gt") else "]"
