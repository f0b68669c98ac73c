r"""Reference answers as data sets write them: text, numbers, booleans, lists; and the texts that say there is none."""

import ast
import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from r3env.data.cells import CellError

NULL, EMPTY = "null", "empty"
# Without case, and without `\text{}`, dollar signs and a period.
_ABSENT = frozenset(("proof", "notfound", "not found", "none", "null", "nan", "n/a", "no answer", "not available"))
_YES_NO = frozenset(("yes", "no", "true", "false"))
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}")
_LIST_OF_TEXT = re.compile(r"\[\s*([\"']).*\1\s*\]", re.DOTALL)
_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_BARE_NUMBER = re.compile(r"-?\d{1,30}(?:\.\d{1,30}|/0*[1-9]\d{0,29})?")
_HASHES = "####"
_COMPUTED = re.compile(r"<<[^<>\n]*>>")
_EXACT = 1 << 53
_NOISE = 4  # digits; 0.1 + 0.2 is 0.30000000000000004
_LONGEST_BARE = 80  # characters of a solution that is nothing but the answer


def reference_text(value: Any) -> str | None:
    r"""Return a reference answer as text; None where the cell holds none, "" where it is empty.

    A list is one answer with commas, and a list in it a tuple; a list of one is its element. `18.0` is `18`.

    Raises:
        CellError: it is not finite, or neither text nor a number, a boolean or a list of these.
    """
    parts = elements(value)
    if parts is not None:
        return ", ".join(parts)
    if hasattr(value, "tolist"):  # a scalar of NumPy
        value = value.tolist()
    if value is None or isinstance(value, str):
        return value and value.strip()
    if isinstance(value, int):  # or a boolean
        return str(value)
    if isinstance(value, float | Decimal):
        return _number(value)
    raise CellError(f"holds a {type(value).__name__}", "make it text, a number, a boolean or a list of these")


def _element(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        inner = [part for part in map(_element, value) if part]
        return f"({', '.join(inner)})" if len(inner) > 1 else "".join(inner) or None
    text = reference_text(value)
    return text and re.sub(r"(?<!\\)\$", "", _unboxed(text)).strip()


def elements(value: Any) -> list[str] | None:
    """Return the elements of a reference that is a list, or the text of one; None for another.

    Of numbers that are written differently and equal the first is there: `["1/2", "0.5"]` is one answer.

    Raises:
        CellError: as `reference_text`.
    """
    value = _read_list(value.strip()) if isinstance(value, str) else value
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, list | tuple):
        return None
    parts: list[str] = []
    spellings: dict[Fraction, str] = {}
    for part in filter(None, map(_element, value)):
        number = _bare_number(part)
        if number is None or spellings.setdefault(number, part) == part:
            parts.append(part)
    return parts


def _bare_number(text: str) -> Fraction | None:
    """Return the number that a text is; None for another: a unit, a sign or a word makes a different answer."""
    text = _FRACTION.sub(r"\1/\2", text)
    return Fraction(text) if _BARE_NUMBER.fullmatch(text) else None


def _read_list(text: str) -> Any:
    if _LIST_OF_TEXT.fullmatch(text):  # `[2, 3]` without quotes may as well be an interval
        for read in (json.loads, ast.literal_eval):
            try:
                return read(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return None


def _number(value: float | Decimal) -> str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        raise CellError("holds a number that is not finite", "write the number as text")
    if isinstance(value, float) and len(short := f"{value:.15g}") < len(str(value)) - _NOISE:
        value = float(short)
    if value == int(value) and (isinstance(value, Decimal) or abs(value) < _EXACT):
        return str(int(value))
    return format(value.normalize(), "f") if isinstance(value, Decimal) else str(value)


def after_hashes(text: str) -> str | None:
    """Return the answer of a solution that ends in `#### 1,234`, as GSM8K's do; None for another text.

    On the line of the solution itself only a number is one.
    """
    steps, _, answer = text.rstrip().rpartition(_HASHES)
    answer = _GROUPED.sub("", answer.strip())
    own_line = not steps.rpartition("\n")[2].strip()
    at_end = _HASHES in text and answer and "\n" not in answer and (own_line or _BARE_NUMBER.fullmatch(answer))
    return answer if at_end else None


def worked_steps(text: str) -> str:
    """Return a worked solution without GSM8K's marks, if it has them: `<<48/2=24>>` and `#### 72` at the end."""
    if after_hashes(text) is None:
        return text.strip()
    return _COMPUTED.sub("", text.rpartition(_HASHES)[0]).strip()


def of_solution(text: str) -> str | None:
    """Return the answer of a worked solution: its last box, or all of it where it is no longer than an answer."""
    boxed = _unboxed(text)
    short = len(text) <= _LONGEST_BARE and "\n" not in text
    return boxed if boxed != text or short else None


def _unboxed(text: str) -> str:
    if "boxed" not in text and "fbox" not in text:
        return text
    from r3env.grading.extraction import answer_in, reference_boxes  # imported here: they are not needed for most

    boxes = reference_boxes(text)
    return answer_in(boxes) if boxes else text


def is_absent(text: str) -> bool:
    """Return whether a text says that there is no reference answer, such as `proof`."""
    return _plain(text) in _ABSENT


def is_yes_no(text: str) -> bool:
    """Return whether a reference is yes or no, true or false: a guess is right half the time."""
    return _plain(text) in _YES_NO


def _plain(text: str) -> str:
    return _WRAPPED.sub(r"\1", _unboxed(text)).strip("$ .\n").casefold() if len(text) <= _LONGEST_BARE else text
