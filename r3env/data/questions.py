"""Problems whose text stands in several columns: lettered options below a question, a story or a table before it."""

import hashlib
import itertools
import random
import re
from string import ascii_uppercase
from typing import Any

from r3env.data.nulls import is_null
from r3env.data.options import Row, lettered, posed, read_options

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
    return lettered(row, "options", "answer", row["question"], said="letter")


def aqua(row: Row) -> dict[str, Any]:
    """Pose a row of AQuA, whose `options` are lettered already, `A)21`, and whose `correct` is a letter."""
    return lettered(row, "options", "correct", row["question"], said="letter")


def mmlu(row: Row) -> dict[str, Any]:
    """Pose a row of MMLU, whose `choices` are a list, and whose `answer` is a place in it from 0, maybe as text."""
    return lettered(row, "choices", "answer", _in_text(row), said="place")


def with_options(row: Row) -> dict[str, Any]:
    """Pose a row with `options`, a list or by letter; its `answer` is a letter, a place from 0 or an option's text."""
    return lettered(row, "options", "answer", _in_text(row)) if read_options(row, "options")[0] else {}


def in_columns(row: Row) -> dict[str, Any]:
    """Pose a row whose options are columns A, B and so on, as CSV files of MMLU and C-Eval have them."""
    name, answer = ("question", "answer") if "question" in row else ("Question", "Answer")
    letters = itertools.takewhile(row.__contains__, ascii_uppercase)
    options = {letter: row[letter] for letter in letters}
    return lettered({"A, B, ...": options, answer: row[answer]}, "A, B, ...", answer, row[name], name=name)


def _in_text(row: Row) -> Any:
    """Return a question behind the text that it is about, if there is one."""
    texts = (row.get(name) for name in ("article", "passage", "context"))
    text = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    return _joined("\n\n", text, row["question"])


def arc(row: Row) -> dict[str, Any]:
    """Pose a row of ARC, whose `choices` hold `text` and `label`; some labels are digits, which become letters."""
    return lettered(row, "choices", "answerKey", row["question"], said="letter")


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
