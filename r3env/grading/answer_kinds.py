r"""The kind of an answer: a numeral with a base, a set or a tuple, words, a multiple choice.

`1010_2` has a base, which math-verify reads without it. `\{1,2\}` is a set, `(1,2)` a tuple or an interval,
`1,2` either.
"""

import re

from r3env.grading.normalization import strip_assignment

_BASE_NAMES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
_BASE_NAME = "|".join(_BASE_NAMES)
_NUMERAL = re.compile(
    r"(?P<open>\()?\s*(?P<digits>\d[\dA-F]*)\s*+(?(open)\))\s*_\s*"
    rf"(?:(?P<base>\d)|\{{\s*(?:(?P<braced>\d+)|\\(?:text|mathrm)\s*\{{\s*(?P<word>{_BASE_NAME})\s*\}})\s*\}})",
    re.ASCII,
)
_SUBSCRIPT_OF_A_NUMBER = re.compile(
    r"(?<![\^_\d.a-zA-Z\\])(?<!\^\{)\d+(?:\.\d+)?(?:\s*\^\s*(?:\{[^{}]*\}|\d))?\s*+\)?\s*_", re.ASCII
)
_ONLY_DIGITS = re.compile(r"\d[\dA-F,]*", re.ASCII)
_MEMBERSHIP = re.compile(r"\s*[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")
_ASSIGNMENT = re.compile(r"[^=<>]*=\s*")
_SIZES = re.compile(r"\\(?:left|right)(?![a-zA-Z])\s*")
_CONDITION = re.compile(r"\\mid(?![a-zA-Z])|[|:=<>]|\\(?:in|[lg]eq?|ne|cup|cap|setminus)(?![a-zA-Z])")
_UNLIKE = ({"set", "tuple"}, {"set", "interval"}, {"list", "interval"})
_DOTS = r"(?:\\[lcd]?dots(?![a-zA-Z])|\.\.\.|\u2026)"
_DECIMAL_OR_DOTS = re.compile(rf"(?:\d\.[\d ]*|\\(?:overline|bar)\s*\{{\d+\}}\s*){_DOTS}|({_DOTS})", re.ASCII)
_OF_A_CASE = re.compile(
    r"(?<![a-zA-Z\\])(?:if|when|because|since|not|unless|where|for|with|given|provided)(?![a-zA-Z])"
)
_LONGEST_CASE = 80
_QUANTITY = re.compile(r"(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|[\d\\]")
_BRACKET_OR_SEPARATOR = re.compile(
    r"([(\[{])|([)\]}])|(?:[,;]\s*)?(?:\\(?:text|mathrm|mbox)\s*\{[,;\s]*(?:and|or)\s*\}"
    r"|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))|[,;]"
)
_SEVERAL_VALUES = re.compile(r"\\(?:pm|mp|in|[lg]e|ne)(?![a-zA-Z])|[<>|]")
_COMMAND = re.compile(r"\\(?:text(?:bf|rm|it|normal|sf|tt)?|math(?:rm|bf|it|sf)|mbox|operatorname|bf|rm)(?![a-zA-Z])")
_SPACING = re.compile(r"(?:\s|\\[,;: !]|\\q?quad(?![a-zA-Z])|~)+")
_WORDS = re.compile(r"[^\W\d_]+(?:[ '\u2019-][^\W\d_]+)*")
# Two or three letters could be a product of variables, unless they are one of these.
_SHORT_WORDS = frozenset(
    "yes no true odd even none on off up down left right all any some sun mon tue wed thu fri sat win lose tie red blue"
    " never always both dne in out".split()
)
_SAME_WORDS = {
    **{"no solutions": "no solution", "no real solutions": "no real solution", "dne": "does not exist"},
    **{"true": "yes", "false": "no", "empty set": "no solution", "the empty set": "no solution"},
}
_ARTICLE = re.compile(r"^(?:an?|the)\s+(?=\w{3})", re.I)
_THERE_IS = re.compile(r"^there\s+(?:is|are)\s+(?=no\s)|(?<=\bsolution)\s+exists?$|(?<=\bsolutions)\s+exist$", re.I)
_OPTION = re.compile(r"^(\\text[a-z]*\s*\{)?\s*(?:option|choice)\s+(?=\(?[A-J](?![a-z]))", re.I)
_LABEL = re.compile(r"\(([A-J])\)(?P<rest>.*)|([A-J])(?:[.:)](?P<more>\s.*)?)?", re.DOTALL)
_MARKED_LABEL = re.compile(rf"(?:{_COMMAND.pattern})\s*\{{\s*\(?([A-J])\)?[.:]?\s*\}}[.:]?(.*)", re.DOTALL)
_OPERATION = tuple("+-*/^=<>_!,|")


def equal_numerals(gold: str, answer: str) -> bool | None:
    r"""Return whether two numerals are the same in the same base, None if neither has one.

    The reference says what base was asked for, so `1010` answers `1010_2`; the other way round it would be ten for a
    thousand and ten. Anything else with a subscript behind a number equals only its own spelling.

    Args:
        gold: The reference answer, cleaned.
        answer: The answer to judge, cleaned; not spelled as the gold.
    """
    if not (_SUBSCRIPT_OF_A_NUMBER.search(gold) or _SUBSCRIPT_OF_A_NUMBER.search(answer)):
        return None
    gold_numeral, answer_numeral = _numeral(gold), _numeral(answer)
    if gold_numeral and answer_numeral:
        return gold_numeral == answer_numeral
    bare = strip_assignment(answer)
    return bool(gold_numeral and _ONLY_DIGITS.fullmatch(bare) and _digits(bare) == gold_numeral[0])


def _numeral(text: str) -> tuple[str, int] | None:
    found = _NUMERAL.fullmatch(strip_assignment(text))
    if found is None:
        return None
    written = found["base"] or found["braced"] or found["word"]
    return _digits(found["digits"]), _BASE_NAMES.index(written) + 2 if written in _BASE_NAMES else int(written[:9])


def _digits(written: str) -> str:
    return written.replace(",", "").lstrip("0") or "0"


def differ_in_kind(gold: str, answer: str) -> bool:
    r"""Return whether one is a set of listed elements and the other a tuple or an interval, or they differ in form.

    `x \in (1,2)` is certainly an interval, so it is not the list `1,2` either. Bare lists of different lengths differ;
    so do what goes on, as `1,2,\ldots`, and what does not, and a case, as `7 \text{ if } n=5`, and what is none.

    Args:
        gold: The reference answer, cleaned.
        answer: The answer to judge, cleaned.
    """
    if {_kind(gold), _kind(answer)} in _UNLIKE:
        return True
    if _goes_on(gold) != _goes_on(answer) or _is_case(gold) != _is_case(answer):
        return True
    counts = _elements(gold), _elements(answer)
    return min(counts) > 1 and counts[0] != counts[1]


def _is_case(text: str) -> bool:
    r"""Return whether a reason or a case is in front of an equals sign: `7 \text{ if } n=5`.

    `\text{Time with traffic} = 45` and `P(\text{not } A) = 45` only name the value.
    """
    for found in _OF_A_CASE.finditer(text):
        equals = text.find("=", found.end(), found.end() + _LONGEST_CASE)
        between = text[found.end() : max(found.end(), equals)]
        words, brace, behind = between.partition("}")
        between = behind if brace and "{" not in words else between
        if between.count(")") <= between.count("(") and _QUANTITY.search(between):
            return True
    return False


def _goes_on(text: str) -> bool:
    r"""Return whether a text has dots that are not those of a decimal: `1,2,\ldots`, but not `0.333...`."""
    return any(found[1] for found in _DECIMAL_OR_DOTS.finditer(text.rpartition("=")[2]))


def _elements(text: str) -> int:
    """Return the number of elements of a bare list, 1 for another text; 0 where one element may be several values."""
    if _SEVERAL_VALUES.search(text):
        return 0
    depth, count = 0, 1
    for found in _BRACKET_OR_SEPARATOR.finditer(text):
        depth += bool(found[1]) - bool(found[2])
        count += depth == 0 and not (found[1] or found[2])
    return count


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
    """Return whether the first bracket is closed by the last character; `[0,1)` is a pair too."""
    depth = 0
    for bracket in re.finditer(r"[()\[\]{}]", text):
        depth += 1 if bracket.group() in "([{" else -1
        if depth <= 0:
            return depth == 0 and bracket.end() == len(text)
    return False


def read_words(text: str) -> str | None:
    """Return the words of an answer, in lower case with single spaces, or None if it may be mathematics.

    What means the same has the same words: true and yes, the empty set and no solution.
    """
    if text.strip() == "\\emptyset":
        return "no solution"
    bare = _ARTICLE.sub("", _THERE_IS.sub("", _bare(text).rstrip(".!")))
    if not _WORDS.fullmatch(bare):
        return None
    marked = _COMMAND.search(text) is not None and len(bare) > 1
    folded = bare.casefold()
    if not marked and not any(len(part) >= 4 or part in _SHORT_WORDS for part in re.split("[ -]", folded)):
        return None
    return _SAME_WORDS.get(folded, folded)


def read_choice(text: str) -> tuple[str, str] | None:
    r"""Return the letter of a multiple choice and the text after it: `\textbf{(B)}\ 12` is ("B", "12").

    Args:
        text: A cleaned answer.
    """
    text = _OPTION.sub(r"\1", text)
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
