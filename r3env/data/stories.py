"""Problems whose text stands in several columns: a story or a table, then the question."""

import re
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

_WHOLE = re.compile(r"(?<![\d.])(\d+)\.0+(?!\d)")


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
    return {"question": f"{row['body']} {row['question']}".strip()}


def boolq(row: Row) -> dict[str, Any]:
    """BoolQ: a text, and a question about it that is answered by true or false."""
    return {"question": f"{row['passage']}\n\n{row['question']}"}


def in_context(row: Row) -> dict[str, Any]:
    """A question about a text in `context`, which may be empty."""
    context = row["context"]
    return {"question": f"{context}\n\n{row['question']}"} if isinstance(context, str) and context.strip() else {}


def alpaca(row: Row) -> dict[str, Any]:
    """Alpaca: an instruction, and what it is about, which may be empty."""
    return {"instruction": "\n\n".join(str(row[name]) for name in ("instruction", "input") if row[name])}


def tabmwp(row: Row) -> dict[str, Any]:
    """TabMWP: a table as text, with a title or none, and the question; some have a list of choices."""
    title = f"{row['table_title']}\n" if row.get("table_title") else ""
    options = row.get("choices")
    choose = f" Choose from: {', '.join(map(str, options))}." if options else ""
    return {"question": f"{title}{row['table']}\n\n{row['question']}{choose}"}
