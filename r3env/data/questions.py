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
    return {"question": posed(row["question"], listed(row["options"]))}


def aqua(row: Row) -> dict[str, Any]:
    """Pose a row of AQuA, whose `options` are lettered already, `A)21`, and whose `correct` is a letter."""
    return {"question": posed(row["question"], listed(row["options"]))}


def mmlu(row: Row) -> dict[str, Any]:
    """Pose a row of MMLU, whose `choices` are a list, and whose `answer` is a place in it from 0."""
    answer, options = row["answer"], listed(row["choices"])
    place = int(answer) if isinstance(answer, str) and answer.strip().isdecimal() else answer  # as CSV files have it
    letter = ascii_uppercase[place] if isinstance(place, int) and 0 <= place < len(options) else answer
    return {"question": posed(_in_text(row), options), "answer": letter}


def with_options(row: Row) -> dict[str, Any]:
    """Pose a row with `options`, a list or by letter; its `answer` is a letter, a place from 0 or an option's text."""
    options = listed(row["options"])
    return {"question": posed(_in_text(row), options), "answer": _letter(row["answer"], options)} if options else {}


def in_columns(row: Row) -> dict[str, Any]:
    """Pose a row whose options are columns A, B and so on, as CSV files of MMLU and C-Eval have them."""
    name, answer = ("question", "answer") if "question" in row else ("Question", "Answer")
    options = _without_end(row[letter] for letter in itertools.takewhile(row.__contains__, ascii_uppercase))
    return {name: posed(row[name], options), answer: _letter(row[answer], options)}


def _without_end(options: Iterable[Any]) -> list[Any]:
    """Return options without the empty ones at the end: a column of a table has every letter in every row."""
    found = list(options)
    while found and (is_null(found[-1]) or not str(found[-1]).strip()):
        found.pop()
    return found


def _letter(answer: Any, options: Sequence[Any]) -> str | None:
    """Return the letter of an answer that is a letter, an option's text or a place from 0; None where it is none.

    A number is a place, unless the options are numbers.
    """
    said, texts = str(answer).strip(), [str(option).strip() for option in options]
    letters = ascii_uppercase[: len(options)]
    of_text = letters[texts.index(said)] if texts.count(said) == 1 else None
    of_place = letters[int(said)] if said.isdecimal() and len(said) < 3 and int(said) < len(letters) else None
    if len(said) == 1 and said in letters:
        return said
    by_text_first = isinstance(answer, str) or all(isinstance(option, int | float) for option in options)
    return (of_text or of_place) if by_text_first else (of_place or of_text)


def _in_text(row: Row) -> Any:
    """Return a question behind the text that it is about, if there is one."""
    texts = (row.get(name) for name in ("article", "passage", "context"))
    text = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    return _joined("\n\n", text, row["question"])


def listed(options: Any) -> list[Any]:
    """Return options as a list, without letters of their own: CSV files have the list as text, some rows an object."""
    for read in (json.loads, ast.literal_eval) if isinstance(options, str) else ():
        try:
            options = read(options)
            break
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    if isinstance(options, Mapping):
        options = _without_end(options.values())
    if not isinstance(options, Sequence) or isinstance(options, str):
        return []
    found = [_LETTERED.fullmatch(option) if isinstance(option, str) else None for option in options]
    if all(each and each[1] == letter for each, letter in zip(found, ascii_uppercase, strict=False)):
        return [each[2] for each in found if each]
    return list(options)


def arc(row: Row) -> dict[str, Any]:
    """Pose a row of ARC, whose `choices` hold `text` and `label`; some labels are digits, which become letters."""
    choices, key = row["choices"] or {"text": (), "label": ()}, row["answerKey"]
    labels = list(choices["label"])
    letter = ascii_uppercase[labels.index(key)] if key in labels else None
    return {"question": posed(row["question"], choices["text"]), "answerKey": letter}


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
