"""Options of a problem: lists, objects by label or their text, read, lettered below it, and the answer as a letter."""

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from r3env.data.nulls import is_null

Row = Mapping[str, Any]

_LETTERED = re.compile(r"\(?([A-Z])[).:](.*)", re.DOTALL)
# A label with a mark behind it, bold perhaps, and perhaps in brackets.
_MARK = r"(?<!\w)(?:[(\[]|\*\*)?{} ?(?:[).:\]\uff0e\uff1a\u3001\uff09]|\*\*)"


class OptionsError(Exception):
    """Options or an answer that cannot be read: what is wrong, the fix, and the question where only the answer is."""


def posed(question: str | None, options: Sequence[Any] | None) -> str | None:
    """Return the question with its options below it, one a line; None where one of these is missing."""
    if not isinstance(question, str) or not options or len(options) < 2 or any(map(is_null, options)):
        return None
    return f"{question.strip()}\n\n{_lines(options)}"


def lettered(
    row: Row, column: str, answer: str, question: Any, *, said: str = "text", name: str = "question"
) -> dict[str, Any]:
    """Return the question with the options of a column, and the letter of the answer; null stays null.

    Args:
        row: The row.
        column: Its column of options.
        answer: That of the answer.
        question: What stands before the options.
        said: What the answer is in the first place: a `letter` and nothing else, a `place`, or a `text`.
        name: The column of the question.

    Raises:
        OptionsError: options or answer cannot be read; the line begins with their column.
    """
    options, labels = read_options(row, column)
    wrong = next((each for each in options if isinstance(each, list | tuple | Mapping)), None)
    if wrong is not None or not 2 <= len(options) <= len(ascii_uppercase) or any(map(is_null, options)):
        found = "an option that is null" if any(map(is_null, options)) else f"{len(options)} options"
        found = found if wrong is None else f"an option that is a {type(wrong).__name__}"
        fix = "make it a list of 2 to 26 texts, an object of them by letter, or {label: [...], text: [...]}"
        raise OptionsError(f"{column!r} holds {found}", fix)
    problem = posed(question, options)
    if is_null(row[answer]) or (isinstance(row[answer], str) and not row[answer].strip()):
        return {name: problem, answer: row[answer]}
    letter = _letter(row[answer], options, labels, said)
    if letter is None:
        fix = f"make it the letter of one{'' if said == 'letter' else ', its text, or its place, counted from 0'}"
        found = f"{answer!r} is {row[answer]!r:.60}, which names no single one of the {len(options)} options"
        raise OptionsError(found, fix, {name: problem})
    return {name: problem, answer: letter}


def below(row: Row, problem: str, answer: str) -> tuple[str, dict[str, str]]:
    """Pose options that a problem of any column lacks, where the answer is the label of one.

    Args:
        row: The row.
        problem: All its text.
        answer: Its reference.

    Returns:
        The column of such options, "" where there is none; and the text to write below the problem and the letter of
        the answer, as `options` and `answer`, nothing where the answer is no label.
    """
    for column in (name for name in row if name.lower() in ("options", "choices") and not is_null(row[name])):
        try:
            options, labels = read_options(row, column)
        except OptionsError:
            return column, {}
        texts = [str(each).strip() for each in options if isinstance(each, str | int | float) and str(each).strip()]
        written = not options and isinstance(row[column], str) and row[column].strip()
        texts = [written] if written else texts
        if _marked(problem, labels) or all(_stands(text, problem) for text in texts):
            continue
        named = all(label.isalpha() and len(label) == 1 or label.isdecimal() for label in map(_bare, labels))
        whole = named and 1 < len(options) == len(texts) <= len(ascii_uppercase)
        letter = _letter(answer, options, labels, "letter") if whole else None
        other = letter and texts.count(answer) == 1 and letter != ascii_uppercase[texts.index(answer)]
        return column, {"options": _lines(options), "answer": letter} if letter and not other else {}
    return "", {}


def read_options(row: Row, column: str) -> tuple[list[Any], list[str]]:
    """Return options and their labels: of a list, an object by label, or `label` and `text`; or the text of these.

    Raises:
        OptionsError: there are more labels than texts, or fewer.
    """
    options: Any = row[column]
    for read in (json.loads, ast.literal_eval) if isinstance(options, str) else ():
        try:
            options = read(options)
            break
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    if isinstance(options, Mapping) and {"label", "text"} <= options.keys():
        labels, options = (options[name] or () for name in ("label", "text"))
        if not all(isinstance(each, list | tuple) for each in (labels, options)):
            raise OptionsError(f"{column!r} holds a label and a text that are no lists", "make each a list")
        labels, options = list(labels), list(options)
    elif isinstance(options, Mapping):
        labels, options = list(options), _without_end(options.values())
        labels = labels[: len(options)]
    elif not isinstance(options, Sequence) or isinstance(options, str):
        return [], []
    elif options and all(isinstance(each, Mapping) and {"label", "text"} <= each.keys() for each in options):
        labels, options = ([each[name] for each in options] for name in ("label", "text"))
    else:
        labels = list(ascii_uppercase[: len(options)])
        found = [_LETTERED.fullmatch(option) if isinstance(option, str) else None for option in options]
        if all(each and each[1] == letter for each, letter in zip(found, ascii_uppercase, strict=False)):
            options = [each[2] for each in found if each]
    if len(labels) != len(options) and len(options) <= len(ascii_uppercase):
        fix = "give each text one label"
        raise OptionsError(f"{column!r} holds {len(labels)} labels of {len(options)} texts", fix)
    return list(options), [str(label).strip() for label in labels]


def _letter(answer: Any, options: Sequence[Any], labels: Sequence[str], first: str) -> str | None:
    """Return the letter of an answer that is a label, an option's text or a place from 0; None where it is none.

    A number is a place, unless the options or their labels are numbers.
    """
    said, texts = str(answer).strip(), [str(option).strip() for option in options]
    letters = ascii_uppercase[: len(options)]
    if labels.count(said) == 1:
        return letters[labels.index(said)]
    of_text = letters[texts.index(said)] if texts.count(said) == 1 and first != "letter" else None
    bare = [_bare(label) for label in labels]
    if of_text is None and bare.count(_bare(said)) == 1:
        return letters[bare.index(_bare(said))]
    by_letters = any(len(label) == 1 and label.isalpha() for label in bare)
    if of_text is None and len(said) == 1 and said in letters and not by_letters:
        return said
    if first == "letter":
        return None
    said = said.removesuffix(".0") if isinstance(answer, float) else said  # of a column with nulls
    numbered = not said.isdecimal() or len(said) > 2 or any(map(str.isdecimal, labels))
    of_place = None if numbered or int(said) >= len(letters) else letters[int(said)]
    by_text_first = isinstance(answer, str) or all(isinstance(option, int | float) for option in options)
    return (of_text or of_place) if by_text_first and first == "text" else (of_place or of_text)


def _bare(label: str) -> str:
    """Return a label without brackets and stops, in lower case."""
    return label.strip("().: ").casefold()


def _without_end(options: Iterable[Any]) -> list[Any]:
    """Return options without the empty ones at the end: a column of a table has every letter in every row."""
    found = list(options)
    while found and (is_null(found[-1]) or not str(found[-1]).strip()):
        found.pop()
    return found


def _marked(problem: str, labels: Sequence[str]) -> bool:
    """Return whether a problem has all labels of options in their order, each with a mark: `A.`, `(a)`, `[1]`."""
    letters = ascii_uppercase[: len(labels)]
    return len(labels) > 1 and any(_in_order(problem, names) for names in (labels, letters, letters.lower()))


def _in_order(problem: str, labels: Iterable[str]) -> bool:
    at = 0
    for label in labels:
        found = re.compile(_MARK.format(re.escape(label.strip("().: ")))).search(problem, at)
        if found is None:
            return False
        at = found.end()
    return True


def _stands(text: str, problem: str) -> bool:
    """Return whether a text stands in a problem by itself, not as a part of a word or a number."""
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", problem) is not None


def _lines(options: Sequence[Any]) -> str:
    return "\n".join(f"{letter}) {str(each).strip()}" for letter, each in zip(ascii_uppercase, options, strict=False))
