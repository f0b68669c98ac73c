r"""What the brackets around an answer make of it: `\{1,2\}` is a set, `(1,2)` a tuple or an interval, `1,2` either."""

import re

_MEMBERSHIP = re.compile(r"\s*[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")
_ASSIGNMENT = re.compile(r"[^=<>]*=\s*")
_SIZES = re.compile(r"\\(?:left|right)(?![a-zA-Z])\s*")
_CONDITION = re.compile(r"\\mid(?![a-zA-Z])|[|:=<>]|\\(?:in|[lg]eq?|ne|cup|cap|setminus)(?![a-zA-Z])")
_UNLIKE = ({"set", "tuple"}, {"set", "interval"}, {"list", "interval"})


def of_different_kind(gold: str, answer: str) -> bool:
    r"""Whether one is a set of listed elements and the other one a tuple or an interval.

    `x \in (1,2)` is certainly an interval, so it is not the list `1,2` either.

    Args:
        gold: The reference answer, cleaned.
        answer: The answer to judge, cleaned.
    """
    return {_kind(gold), _kind(answer)} in _UNLIKE


def _kind(text: str) -> str | None:
    text = _SIZES.sub("", text)
    member = _MEMBERSHIP.match(text)
    assigned = member or _ASSIGNMENT.match(text)
    inside = text[assigned.end() :] if assigned else text
    if "," not in inside or _CONDITION.search(inside):
        return None
    if inside[0] in "([" and _one_pair(inside):
        return "interval" if member else "tuple"
    # The one element of {(1,2)} may be what is asked for.
    if inside.startswith("\\{") and _one_pair(inside):
        return None if inside[2:].lstrip()[:1] in ("(", "[") and _one_pair(inside[2:-2].strip()) else "set"
    return "list" if not re.search(r"[(\[{]", inside) else None


def _one_pair(text: str) -> bool:
    """Whether the first bracket is closed by the last character; `[0,1)` is a pair too."""
    depth = 0
    for bracket in re.finditer(r"[()\[\]{}]", text):
        depth += 1 if bracket.group() in "([{" else -1
        if depth <= 0:
            return depth == 0 and bracket.end() == len(text)
    return False
