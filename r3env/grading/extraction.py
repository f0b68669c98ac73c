"""The final answer in a response: the content of its last complete box or boxes, or one of another form."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from r3env.grading.answer_forms import BOX, LAST_NUMBER, last_number, marker, text_after
from r3env.grading.normalization import strip_separators
from r3env.reasoning import visible_text

# A box is `\boxed{` or `\fbox{`; the extra backslashes are those of a line break or of doubled escaping. They
# are bounded so that a response of backslashes only is still read in linear time.
_TOKEN = re.compile(r"\\{1,4}(?:boxed|fbox)\s*\{|\\[\s\S]|[{}]")
_BOX_COMMAND = re.compile(r"\\{1,4}(?:boxed|fbox)\s*(?=\{)")

_WITHOUT_BRACES = re.compile(
    r"(\\(?:boxed|fbox)(?![a-zA-Z]))\s*(-?\d+(?:\.\d+)?|\\[dtc]?frac\s*(?:\{[^{}]*\}|\d)\s*(?:\{[^{}]*\}|\d))"
)
_SIGN = re.compile(r"(?:(?:\A|[\n=$(\[])|(?:=|\\[\[(])\s{1,4})[-\u2212]\Z")  # a dash of a sentence is none
_SIGNED = re.compile(r"[\d.(]|\\(?:[dtc]?frac|sqrt|pi|\$|infty)(?![a-zA-Z])|[a-z](?![a-zA-Z])")
_LONGEST_GAP = 80  # characters between two boxes of one answer
_WORDS_BEFORE_AND, _WORDS_BEFORE_COMMA = 4, 1  # `\boxed{3} in the first and \boxed{5}`, `\boxed{3} chairs, \boxed{5}`
_MOST_WORDS = 6  # between boxes of a reference
_LINE_BREAK = re.compile(r"\n|\\\\")
_TEXT_COMMAND = re.compile(r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox)\s*\{([^{}]*)\}")
_DECORATION = re.compile(r"\$+|\\[()\[\],;:! \\&]|\\q?quad|\\(?:left|right|displaystyle)(?![a-zA-Z])|\*\*|[~&\s]+")
_AND = r"(?:(?:and|or|as well as)(?![a-zA-Z])|[\u548c\u4e0e\u6216])\s*"
_GUESS = r"(?:(?:maybe|perhaps|possibly|alternatively|also|even|else)(?![a-zA-Z])\s*)"
_LABEL = (
    r"(?:(?:\\[a-zA-Z]+\s*|[a-zA-Z]){1,4}'{0,2}(?:_(?:\w|\{[^{}]{1,12}\}))?(?:\([^()=]{1,12}\))?"
    r"|\([a-zA-Z](?:\s*,\s*[a-zA-Z]){1,3}\))\s*=\s*"
)
_JOINT = re.compile(
    rf"(?P<words>[a-zA-Z ()'-]*?)(?:(?P<mark>[,;\uff0c\u3001\uff1b])\s*(?:{_AND})?|(?<![a-zA-Z]){_AND})"
    rf"{_GUESS}*,?\s*(?P<label>{_LABEL})?",
    re.IGNORECASE,
)
_LABEL_BEFORE = re.compile(rf"(?<![a-zA-Z\\])(?P<label>{_LABEL})\Z")
_LOOSE = re.compile(rf"(?P<words>[a-zA-Z ,()'-]*?)(?P<label>(?<![a-zA-Z\\]){_LABEL})?")
_WORD = re.compile(r"[a-zA-Z]+")
# These take back what was said before, or draw a conclusion from it.
_TURNS = frozenset(
    "not no nor wait but then than so if when finally instead rather actually hence thus therefore since because which"
    " implies means gives get becomes yields final answer answers correct wrong incorrect check or of"
    " simplifies equals".split()
)


@dataclass(frozen=True)
class Box:
    """A box: its content, and the text before it, such as `x_1 = `, if any."""

    label: str
    content: str


@dataclass(frozen=True)
class FinalBoxes:
    r"""The boxes that make the final answer.

    Args:
        boxes: Those at the end that commas, "and" or "or" join, right before the later box; mostly a single one.
        wider: These and the boxes before them that may belong to them: `\boxed{1}\boxed{2}`. For references only:
            a response that could mean either would be paid for two guesses.
    """

    boxes: tuple[Box, ...]
    wider: tuple[Box, ...]


def final_answer(response: str, form: str = BOX) -> str | None:
    r"""Return the final answer outside the thinking, the content of the last complete box; None if there is none.

    A minus sign right before the box belongs to it where a formula begins or after an equals sign: `x = -\boxed{5}`.

    Everything before the last `</think>` is thinking, whether the response or the prompt opened it. Thinking
    that was opened and never closed leaves no answer. A box that is never closed does not count; of nested
    boxes the outermost does, and the commands of the inner ones are removed. `\boxed{1} and \boxed{2}` is `1, 2`.

    Args:
        response: Everything that the policy wrote.
        form: `box`; `last_number`: the last number where there is no box; `after:TEXT`: what follows the last TEXT up
            to the end of its sentence or line, or the box there.
    """
    final = final_boxes(response, form)
    return None if final is None else answer_in(final)


def final_boxes(response: str, form: str = BOX) -> FinalBoxes | None:
    """Return the boxes of the final answer of a response, or None if it has none; see `final_answer`.

    An answer of another form than a box is a box without a label.
    """
    visible = visible_text(response)
    if visible is None:
        return None
    if form == BOX:
        return _boxes_in(visible)
    if form == LAST_NUMBER:
        return _boxes_in(visible) or _single(last_number(visible))
    text = text_after(visible, marker(form))
    return None if text is None else _boxes_in(text) or _single(text)


def reference_boxes(reference: str) -> FinalBoxes | None:
    r"""Return the boxes of a reference, or None if it has none; `\boxed 7` and `\boxed\frac12` are boxes here."""
    if "box" not in reference:
        return None
    return final_boxes(_WITHOUT_BRACES.sub(r"\1{\2}", reference))


def _single(answer: str | None) -> FinalBoxes | None:
    boxes = (Box("", answer or ""),)
    return FinalBoxes(boxes, boxes) if answer else None


def _boxes_in(visible: str) -> FinalBoxes | None:
    places = _complete_boxes(visible)
    if not places:
        return None
    last = _content(visible, places[-1])
    if not last:
        return None
    return _single(last) if len(places) == 1 else _joined(visible, places, last)


def answer_in(final: FinalBoxes) -> str:
    """Return the answer that the last boxes form; see `final_answer`."""
    alike = len({(box.label, box.content) for box in final.boxes}) == 1
    return final.boxes[-1].content if alike else as_list(final.boxes)


def as_list(boxes: Sequence[Box], *, labelled: bool = False) -> str:
    r"""Return the answer that boxes form together: `1, 2`, or, if every box has its own name, `x = 1, y = 2`.

    Args:
        boxes: At least one box.
        labelled: Whether to write the names.
    """
    if len(boxes) == 1:
        return boxes[0].content
    if labelled and all(box.label and "=" not in box.content for box in boxes):
        return ", ".join(box.label + strip_separators(box.content) for box in boxes)
    return ", ".join(strip_separators(box.content) for box in boxes)


def _complete_boxes(text: str) -> list[tuple[int, int, int]]:
    """Outermost complete boxes, each as the start of its command, or sign, and of its content, and the content's end.

    Takes one pass: a response may hold thousands of open ones.
    """
    first = text.find("box")
    if first < 0:
        return []
    start = len(text[:first].removesuffix("f").rstrip("\\"))  # nothing before it can close or open a box
    found: list[tuple[int, int, int]] = []
    open_braces: list[tuple[int, int] | None] = []
    for token in _TOKEN.finditer(text, start):
        written = token.group()
        if written == "}":
            opened = open_braces.pop() if open_braces else None
            if opened is not None:
                while found and found[-1][0] > opened[0]:  # nested in this one
                    found.pop()
                found.append((*opened, token.start()))
        elif written == "{":
            open_braces.append(None)
        elif written.endswith("{") and len(written) > 2:
            signed = _SIGN.search(text, max(0, token.start() - 8), token.start()) is not None
            open_braces.append((token.start() - signed, token.end()))
    return found


def _content(text: str, place: tuple[int, int, int]) -> str:
    content = _BOX_COMMAND.sub("", text[place[1] : place[2]]).strip()
    if text[place[0]] == "\\" or not _SIGNED.match(content) or "=" in content:
        return content
    return f"-({content})" if re.search(r"[-+]", content) else f"-{content}"


def _joined(text: str, places: list[tuple[int, int, int]], last: str) -> FinalBoxes:
    content, together, backwards = last, 0, []
    for place, before in zip(reversed(places), [*reversed(places[:-1]), None], strict=True):
        joint = _joint(text[before[2] + 1 : place[0]]) if before and place[0] - before[2] <= _LONGEST_GAP else None
        earlier = _content(text, before) if joint and before else ""
        if joint is None or not earlier:
            named = _LABEL_BEFORE.search(_plain(text[max(0, place[0] - _LONGEST_GAP) : place[0]]))
            backwards.append(Box(named["label"] if named else "", content))
            break
        backwards.append(Box(joint[0], content))
        if not joint[1] and not together:
            together = len(backwards)
        content = earlier
    boxes = tuple(reversed(backwards))
    return FinalBoxes(boxes[-together:], boxes)


def _joint(gap: str) -> tuple[str, bool] | None:
    """Return the name before the later box and whether the two surely belong together; None if they surely do not."""
    plain = _plain(gap).strip()
    joint = _JOINT.fullmatch(plain)
    if joint:
        most = _WORDS_BEFORE_COMMA if joint["mark"] else _WORDS_BEFORE_AND
        if _only_describe(joint["words"], most):
            return joint["label"] or "", True
    loose = _LOOSE.fullmatch(plain)
    if loose is None or not _only_describe(loose["words"], _MOST_WORDS) or (not plain and _LINE_BREAK.search(gap)):
        return None
    if plain and not re.search(r",|\band\b", loose["words"]):
        return None
    return loose["label"] or "", False


def _only_describe(between: str, most: int) -> bool:
    """Whether the words between two boxes are few, and none of them takes the first box back or concludes from it."""
    words = _WORD.findall(between.lower())
    return len(words) <= most and _TURNS.isdisjoint(words)


def _plain(text: str) -> str:
    """Return what stands between boxes without the delimiters of formulas and other decoration."""
    return _DECORATION.sub(" ", _TEXT_COMMAND.sub(r" \1 ", text))
