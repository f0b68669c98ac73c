"""Problems whose text stands in several columns: lettered options below a question, a story or a table before it."""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from r3env.data.nulls import is_null

Row = Mapping[str, Any]

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
    return {"question": posed(row["question"], row["options"])}


def aqua(row: Row) -> dict[str, Any]:
    """Pose a row of AQuA, whose `options` are lettered already, `A)21`, and whose `correct` is a letter."""
    options = row["options"] or ()
    bare = [re.sub(r"^[A-Z]\)\s*", "", option) if isinstance(option, str) else option for option in options]
    return {"question": posed(row["question"], bare)}


def mmlu(row: Row) -> dict[str, Any]:
    """Pose a row of MMLU, whose `choices` are a list, and whose `answer` is a place in it from 0."""
    answer, options = row["answer"], row["choices"] or ()
    letter = ascii_uppercase[answer] if isinstance(answer, int) and 0 <= answer < len(options) else answer
    return {"question": posed(row["question"], options), "answer": letter}


def arc(row: Row) -> dict[str, Any]:
    """Pose a row of ARC, whose `choices` hold `text` and `label`; some labels are digits, which become letters."""
    choices, key = row["choices"] or {"text": (), "label": ()}, row["answerKey"]
    labels = list(choices["label"])
    letter = ascii_uppercase[labels.index(key)] if key in labels else None
    return {"question": posed(row["question"], choices["text"]), "answerKey": letter}


def posed(question: str | None, options: Sequence[Any] | None) -> str | None:
    """Return the question with its options below it, one a line; None where one of these is missing."""
    if not isinstance(question, str) or not options or any(map(is_null, options)):
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
