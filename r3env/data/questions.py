"""Problems whose text stands in several columns: lettered options below a question, a story or a table before it."""

import ast
import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from r3env.data.nulls import is_null

Row = Mapping[str, Any]

_LETTERED = re.compile(r"\(?([A-Z])[).:](.*)", re.DOTALL)
_WHOLE = re.compile(r"(?<![\d.])(\d+)\.0+(?!\d)")


class OptionsError(Exception):
    """Options or an answer that cannot be read: what is wrong, the fix, and the question where only the answer is."""


def gpqa(row: Row) -> dict[str, Any]:
    """Pose a row of GPQA, whose columns separate the correct option from the three others.

    The order of the options is shuffled by the question, so that a problem is the same in every run.
    """
    question = row["Question"]
    if not isinstance(question, str):
        return {"Question": None}
    correct = row["Correct Answer"]
    options = [correct, *(row[f"Incorrect Answer {number}"] for number in (1, 2, 3))]
    seed = int.from_bytes(hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()[:8])
    random.Random(seed).shuffle(options)
    return {"Question": posed(question, options), "answer": ascii_uppercase[options.index(correct)]}


def mmlu_pro(row: Row) -> dict[str, Any]:
    """Pose a row of MMLU-Pro, whose `options` are a list of up to ten, and whose `answer` is a letter."""
    return _lettered(row, "options", "answer", row["question"], said="letter")


def aqua(row: Row) -> dict[str, Any]:
    """Pose a row of AQuA, whose `options` are lettered already, `A)21`, and whose `correct` is a letter."""
    return _lettered(row, "options", "correct", row["question"], said="letter")


def mmlu(row: Row) -> dict[str, Any]:
    """Pose a row of MMLU, whose `choices` are a list, and whose `answer` is a place in it from 0, maybe as text."""
    return _lettered(row, "choices", "answer", _in_text(row), said="place")


def with_options(row: Row) -> dict[str, Any]:
    """Pose a row with `options`, a list or by letter; its `answer` is a letter, a place from 0 or an option's text."""
    return _lettered(row, "options", "answer", _in_text(row)) if _options(row, "options")[0] else {}


def in_columns(row: Row) -> dict[str, Any]:
    """Pose a row whose options are columns A, B and so on, as CSV files of MMLU and C-Eval have them."""
    name, answer = ("question", "answer") if "question" in row else ("Question", "Answer")
    letters = itertools.takewhile(row.__contains__, ascii_uppercase)
    options = {letter: row[letter] for letter in letters}
    return _lettered({"A, B, ...": options, answer: row[answer]}, "A, B, ...", answer, row[name], name=name)


def _lettered(
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
    options, labels = _options(row, column)
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


def _without_end(options: Iterable[Any]) -> list[Any]:
    """Return options without the empty ones at the end: a column of a table has every letter in every row."""
    found = list(options)
    while found and (is_null(found[-1]) or not str(found[-1]).strip()):
        found.pop()
    return found


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


def _in_text(row: Row) -> Any:
    """Return a question behind the text that it is about, if there is one."""
    texts = (row.get(name) for name in ("article", "passage", "context"))
    text = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    return _joined("\n\n", text, row["question"])


def _options(row: Row, column: str) -> tuple[list[Any], list[str]]:
    """Return options and their labels: of a list, an object by label, or `label` and `text`; or the text of these.

    Raises:
        OptionsError: there are more labels than texts, or fewer.
    """
    options: Any = row[column]
    for read in (json.loads, ast.literal_eval) if isinstance(options, str) else ():
        try:
            options = read(options)
            break
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    if isinstance(options, Mapping) and {"label", "text"} <= options.keys():
        labels, options = (list(options[name] or ()) for name in ("label", "text"))
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


def arc(row: Row) -> dict[str, Any]:
    """Pose a row of ARC, whose `choices` hold `text` and `label`; some labels are digits, which become letters."""
    return _lettered(row, "choices", "answerKey", row["question"], said="letter")


def posed(question: str | None, options: Sequence[Any] | None) -> str | None:
    """Return the question with its options below it, one a line; None where one of these is missing."""
    if not isinstance(question, str) or not options or len(options) < 2 or any(map(is_null, options)):
        return None
    lettered = [f"{letter}) {str(option).strip()}" for letter, option in zip(ascii_uppercase, options, strict=False)]
    return f"{question.strip()}\n\n" + "\n".join(lettered)


def svamp(row: Row) -> dict[str, Any]:
    """SVAMP: the story and the question are two columns; its equation is a worked solution."""
    body, question = row["Body"], row["Question"]
    if not isinstance(body, str) or not isinstance(question, str):
        return {"Question": None}
    body = body.strip()
    return {
        "Question": f"{body if body.endswith(('.', '!', '?', ',')) else f'{body}.'} {question.strip()}",
        **_calculation(row.get("Equation"), row.get("Answer")),
    }


def mawps(row: Row) -> dict[str, Any]:
    """MAWPS: the expression that an equation was solved for is a worked solution."""
    return _calculation(row.get("expression"), row.get("result")) if row.get("solution") is None else {}


def _calculation(expression: Any, result: Any) -> dict[str, Any]:
    """Return `290 / 2 = 145` as the column `solution`; nothing where a part is missing."""
    if not isinstance(expression, str) or not expression.strip() or result is None:
        return {}
    text = expression.strip()
    inner = re.fullmatch(r"\(([^()]*)\)", text)
    left, right = (_WHOLE.sub(r"\1", str(part)).strip() for part in (inner[1] if inner else text, result))
    return {"solution": f"{left} = {right}"}


def asdiv(row: Row) -> dict[str, Any]:
    """ASDiv: the story is `body`, the question `question`; the answer, `9 (apples)`, stays as it is."""
    return {"question": _joined(" ", row["body"], row["question"])}


def boolq(row: Row) -> dict[str, Any]:
    """BoolQ: a text, and a question about it that is answered by true or false."""
    return {"question": _joined("\n\n", row["passage"], row["question"])}


def in_context(row: Row) -> dict[str, Any]:
    """A question about a text in `context`, which may be empty."""
    context = row["context"]
    present = isinstance(context, str) and context.strip()
    return {"question": _joined("\n\n", context, row["question"])} if present else {}


def alpaca(row: Row) -> dict[str, Any]:
    """Alpaca: an instruction, and what it is about, which may be empty."""
    return {"instruction": _joined("\n\n", row["instruction"], row["input"] or "")}


def tabmwp(row: Row) -> dict[str, Any]:
    """TabMWP: a table as text, with a title or none, and the question; some have a list of choices."""
    title = f"{row['table_title']}\n" if row.get("table_title") else ""
    options = row.get("choices")
    choose = f" Choose from: {', '.join(map(str, options))}." if options else ""
    question = _joined("\n\n", row["table"], row["question"])
    return {"question": question and f"{title}{question}{choose}"}


def _joined(between: str, *parts: Any) -> str | None:
    """Return the texts of a problem that are not empty as one; None where one is null, which nobody can answer."""
    if any(map(is_null, parts)):
        return None
    return between.join(text for text in (str(part).strip() for part in parts) if text)
