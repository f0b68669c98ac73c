r"""The possible meanings of adjacent boxes: the list in them, or one answer that was given twice.

A list has to have all elements of the reference: who boxes several guesses is not paid for the one that is right.
"""

import re
from collections import Counter
from collections.abc import Iterator

from r3env.grading import plain_numbers
from r3env.grading.extraction import FinalBoxes, as_list
from r3env.grading.fast_path import fast_equal
from r3env.grading.normalization import clean, encloses, unwrap

_SAME_ANSWERS = 4  # boxes joined by "or" that are compared one by one
_ELEMENTS = 12  # of a list that is compared element by element
_SEPARATOR = re.compile(r"[,;]\s*(?:(?:and|or)\s)?|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])")


def gold_readings(gold: FinalBoxes) -> list[str]:
    """Return the meanings of a boxed reference; it is trusted, so a loose list or its last box is accepted.

    Args:
        gold: The boxes of the reference.
    """
    readings = [as_list(gold.wider, labelled=True), as_list(gold.boxes, labelled=True)]
    if len({box.content for box in gold.boxes}) == 1:
        readings.append(gold.boxes[-1].content)
    return list(dict.fromkeys(readings))


def answer_text(answer: FinalBoxes, gold: str) -> str | None:
    """Return a response's answer as one text, or None for a list that would have to equal a number.

    Args:
        answer: The boxes of the response.
        gold: The reference; only one with equations is compared with the names before the boxes.
    """
    if len(answer.boxes) > 1 and _is_number(gold):
        return None
    return as_list(answer.boxes, labelled="=" in gold)


def repeated_answers(answer: FinalBoxes) -> list[str]:
    r"""Return the contents of boxes that may all mean the same, as `\boxed{\frac12} or \boxed{0.5}` do; mostly none."""
    contents = list(dict.fromkeys(box.content for box in answer.boxes))
    return contents if len(answer.boxes) > 1 and len(contents) <= _SAME_ANSWERS else []


def same_elements(answer: FinalBoxes, gold: str) -> bool:
    """Return whether boxes obviously hold the elements of a list, in any order: words and values with units, say.

    Args:
        answer: The boxes of the response.
        gold: The reference; a tuple, or one with equations, is for the parser.
    """
    if not 1 < len(answer.boxes) <= _ELEMENTS or "=" in gold or _is_number(gold):
        return False
    elements, left = _elements(gold), [box.content for box in answer.boxes]
    if len(elements) != len(left):
        return False
    for element in elements:
        found = next((content for content in left if fast_equal(element, content)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _is_number(gold: str) -> bool:
    """Return whether a reference is a single number, as 1,234 is: no list of two boxes equals it."""
    return plain_numbers.read(clean(gold)) is not None


def _elements(gold: str) -> list[str]:
    text = unwrap(clean(gold)).replace("\\left", "").replace("\\right", "").strip()
    text = re.sub(r"\\text\s*\{\s*(and|or)\s*\}", r" \1 ", text)
    if encloses(text, "\\{", "\\}"):
        text = text[2:-2]
    return [element.strip() for element in _split(text)]


def _split(text: str) -> Iterator[str]:
    """The parts between separators that stand in no brackets."""
    start = read = 0
    still_open = Counter[str]()
    for separator in _SEPARATOR.finditer(text):
        for pair in ("()", "[]", "{}"):
            opened, closed = (text.count(bracket, read, separator.start()) for bracket in pair)
            still_open[pair] += opened - closed
        read = separator.start()
        if not any(still_open.values()):
            yield text[start:read]
            start = separator.end()
    yield text[start:]
