"""Cells of rows: columns within columns by dots, and the turns of a conversation."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from r3env.data.json_rows import Row

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}
# In a conversation to imitate, unlike in a prompt, the last turn is the answer.
_WITH_ANSWER = ("messages", "conversations")

Turns = tuple[dict[str, str], ...]


class CellError(Exception):
    """A cell that cannot be used: what is wrong, without the column's name, and the fix."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


def find_cell(row: Row, column: str) -> Any:
    """Return the cell of a column; `reward_model.ground_truth` is a member of the cell of `reward_model`.

    Members of lists are numbers from 0. JSON text is read where a member of it is named.

    Raises:
        KeyError: there is none.
    """
    if column in row:
        return row[column]
    # A name may hold dots itself, as `meta.source` of a flattened row does.
    for end in range(len(column) - 1, 0, -1):
        if column[end] == "." and column[:end] in row:
            return _member(row[column[:end]], column[end + 1 :])
    raise KeyError(column)


def _member(value: Any, path: str) -> Any:
    value = _parsed(value)
    if isinstance(value, Mapping):
        return find_cell(value, path)
    number, _, rest = path.partition(".")
    if isinstance(value, list | tuple) and number.isdecimal() and int(number) < len(value):
        return _member(value[int(number)], rest) if rest else value[int(number)]
    raise KeyError(path)


def _parsed(value: Any) -> Any:
    """A cell of JSON text, which CSV files and some data sets hold, as what it says."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def column_names(row: Row) -> list[str]:
    """Return the names of all columns, those within other columns by dots."""
    return [name for column in row for name in _names_in(column, row[column])]


def _names_in(name: str, value: Any) -> Iterator[str]:
    members = value if isinstance(value, Mapping) else {}
    if not members:
        yield name
    for member in members:
        yield from _names_in(f"{name}.{member}", members[member])


def is_conversation(value: Any) -> bool:
    """Return whether a cell holds turns, each an object with a role, as such or as JSON text."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return False
    turns = _turns(value)
    return bool(turns) and all(isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in turns)


def _turns(value: Any) -> Sequence[Any]:
    value = _parsed(value)
    if isinstance(value, Mapping) and all(isinstance(value.get(name), list) for name in ("role", "content")):
        # As some versions of the library `datasets` give a list of objects: by member.
        return [{"role": role, "content": text} for role, text in zip(value["role"], value["content"], strict=False)]
    return value if isinstance(value, list | tuple) else ()


def read_conversation(value: Any, column: str) -> tuple[Turns, str]:
    """Return the turns before the last user turn, and the text of that.

    Args:
        value: The cell. Roles are named as by OpenAI (`role`, `content`) or by ShareGPT (`from`, `value`).
        column: Its name. In `messages` and `conversations` a last assistant turn is the answer, and is left out.

    Raises:
        CellError: A turn has no text or another role, or the last one is not the user's.
    """
    turns = [_turn(number, turn) for number, turn in enumerate(_turns(value), start=1)]
    if turns[-1]["role"] == "assistant" and column.rpartition(".")[2] in _WITH_ANSWER:
        turns.pop()
    if not turns or turns[-1]["role"] != "user":
        last = turns[-1]["role"] if turns else "assistant"
        raise CellError(f"ends in the turn of a role {last!r}", "end it in a user turn, which the policy answers")
    *before, last_turn = turns
    return tuple(before), last_turn["content"]


def _turn(number: int, turn: Mapping[str, Any]) -> dict[str, str]:
    given = turn.get("role", turn.get("from"))
    role = _ROLES.get(given.lower()) if isinstance(given, str) else None
    if role is None:
        raise CellError(f"has a turn {number} of the role {given!r}", "make it system, user or assistant")
    content = turn.get("content", turn.get("value"))
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = _joined(number, content)
    if not isinstance(content, str) or not content.strip():
        raise CellError(f"has no text in turn {number}", "give each turn a text in 'content'")
    return {"role": role, "content": content.strip() if role == "user" else content}


def _joined(number: int, parts: Sequence[Any]) -> str:
    """Return the text of a content of several parts."""
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise CellError(f"has parts other than text in turn {number}", "leave out rows with pictures")
    return "\n".join(texts)  # type: ignore[arg-type]
