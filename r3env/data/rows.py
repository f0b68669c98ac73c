"""Queries from rows; errors name the row, the column, and the fix."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from r3env.core import Query
from r3env.data.cells import CellError, Turns, column_names, find_cell, is_conversation, read_conversation
from r3env.data.json_rows import Row
from r3env.data.nulls import is_null
from r3env.data.options import OptionsError, below
from r3env.data.recognition import SOLUTION, Format
from r3env.data.references import EMPTY, NULL, after_hashes, elements, is_absent, of_solution, reference_text
from r3env.data.sources import DataError, MissingColumnError, Source
from r3env.spelling import nearest

FIELDS = ("problem", "answer", "uid", "level")
_NAMES_SHOWN = 30


class UnusableError(DataError):
    """A problem or an answer is missing in a row whose columns are there."""


class MalformedError(UnusableError):
    """A row whose options, or the answer that names one of them, cannot be read."""


class AbsentError(Exception):
    """A row whose reference says that there is none; `value` is what it says."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


_BESIDE = ("context", "passage", "article")  # what questions are about
_IMAGE = re.compile(r"<image ?\d*>")
_OF_PICTURES = ("image", "images", "picture", "pictures", "img")  # columns whose paths are those of pictures
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")


def _texts(cell: Any) -> Iterator[str]:
    """Yield the texts that a cell holds, at any depth, without those that are empty."""
    if isinstance(cell, str) and cell.strip():
        yield cell.strip()
    elif isinstance(cell, list | tuple | Mapping):
        for each in cell.values() if isinstance(cell, Mapping) else cell:
            yield from _texts(each)


def _is_picture(column: str, cell: Any) -> bool:
    """Return whether a cell holds a picture or several: bytes, an object with them (the Hub's files), or a path."""
    first = cell[0] if isinstance(cell, list | tuple) and cell else cell
    of_a_file = isinstance(first, str) and first.strip().lower().endswith(_PICTURES)
    return (
        (of_a_file and column.lower() in _OF_PICTURES)
        or isinstance(first, bytes)
        or (isinstance(first, Mapping) and "bytes" in first)
    )


@dataclass
class RowReader:
    """Reads the rows of one data set.

    Args:
        source: The data set, for messages.
        format: Which columns hold what.
        optional: Columns to keep in `Query.info` where a row has them; None for every column.
        whole_row: Whether a row may lack an answer, and what is in `Query.info` tells queries apart.
        after_hashes: References read behind `####` so far.
        lists: References that are lists of several answers so far.
        not_posed: By column, problems without the text that stands in it so far.
    """

    source: Source
    format: Format
    optional: Collection[str] | None = ()
    whole_row: bool = False
    after_hashes: int = 0
    lists: int = 0
    not_posed: Counter[str] = field(default_factory=Counter)

    def query(self, number: int, row: Row) -> Query:
        """Return the query of a row.

        Raises:
            AbsentError: Its reference says that there is none.
            UnusableError: It has no problem, or one with a picture, or under a preset no answer.
            DataError: It cannot be used.
        """
        preset, columns = self.format.preset, self.format.columns
        row = {name: None if is_null(cell) else cell for name, cell in row.items()}
        if preset and preset.pose:
            row = {**row, **self._posed(number, row, preset.pose)}
        turns, problem = self._problem(number, row)
        images = [name for name in row if "image" in name.lower() or name.lower() in _OF_PICTURES]
        if any(_is_picture(name, row[name]) for name in images) or (images and _IMAGE.search(problem)):
            what = "the problem has a picture, which no text model sees"
            raise UnusableError.at(self.source.text, what, "leave the row out", row=number)
        answer = self._answer(number, row)
        if preset and preset.context and isinstance(context := row.get(preset.context), str) and context.strip():
            problem = f"{self._encodable(number, preset.context, context.strip())}\n\n{problem}"
        whole = " ".join([problem, *(turn["content"] for turn in turns)])
        if not (preset and preset.pose):
            column, lettered = below(row, whole, answer)
            self.not_posed.update([column] if column and not lettered else [])
            problem = f"{problem}\n\n{lettered['options']}" if lettered else problem
            answer = lettered["answer"] if lettered and not self.whole_row else answer
        beside = [name for name in row if name.lower() in _BESIDE]
        self.not_posed.update(name for name in beside if any(text not in whole for text in _texts(row[name])))
        uid, level = (self._optional_cell(number, row, name) for name in ("uid", "level"))
        further = {name: column for name, column in columns.items() if name not in FIELDS}
        info = {name: self._info_cell(number, row, column, name) for name, column in further.items()}
        info = {**self._optional_info(number, row), **info}
        identity = [json.dumps(info, sort_keys=True)] if self.whole_row and info else []
        identity += [json.dumps(turns, sort_keys=True)] if turns else []
        return Query(uid or _content_hash(problem, answer, *identity), problem, answer, level, info, turns)

    def _posed(self, number: int, row: Row, pose: Callable[[Row], Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            return pose(row)
        except KeyError as error:
            self._value(number, row, str(error.args[0]), str(error.args[0]))
            raise
        except OptionsError as error:
            problem, fix, *question = error.args
            if self.whole_row and question:
                return question[0]  # what the answer means is up to the function
            raise MalformedError.at(self.source.text, problem, fix, row=number) from None

    def _problem(self, number: int, row: Row) -> tuple[Turns, str]:
        column = self.format.columns.get("problem", "problem")
        value = self._value(number, row, column, "problem")
        if not is_conversation(value):
            return (), self._cell(number, row, column, "problem")
        try:
            turns, problem = read_conversation(value, column)
        except CellError as error:
            raise self._error(number, f"{column!r} {error.problem}", error.fix) from None
        for turn in turns:
            self._encodable(number, column, turn["content"])
        return turns, self._encodable(number, column, problem)

    def _answer(self, number: int, row: Row) -> str:
        """Return the reference answer; "" where a row may lack it, which keeps what it has as it is.

        Where the reward is a function's, what it is given is the cell: text as it is, lists and objects as JSON text.
        """
        preset, column = self.format.preset, self.format.columns.get("answer", "answer")
        if self.whole_row and self._is_missing(row, column):
            return ""
        value = self._value(number, row, column, "answer")
        if preset:
            value = preset.answer(value)
        if self.whole_row and isinstance(value, str | list | tuple | Mapping):
            cell = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            return self._encodable(number, column, cell.strip())
        if isinstance(value, Mapping) and value:
            fix = f"map one of them: environment.columns={{answer: {column}.{next(iter(value))}}}"
            raise self._error(number, f"{column!r} holds an object of {', '.join(map(str, value))}", fix)
        try:
            parts = elements(value)
            text = ", ".join(parts) if parts else reference_text(value)
        except CellError as error:
            if self.whole_row and "answer" in self.format.guessed:
                return ""
            raise self._error(number, f"{column!r} {error.problem}", error.fix) from None
        if text:
            text = self._encodable(number, column, text)
        if self.whole_row:
            return text or ""
        if not text and preset:
            problem = f"{column!r} is {NULL if text is None else EMPTY}"
            raise UnusableError.at(self.source.text, problem, "fill it in or leave the row out", row=number)
        if not text:
            raise AbsentError(NULL if text is None else EMPTY)
        self.lists += parts is not None and len(parts) > 1
        return self._reference(text, column)

    def _reference(self, text: str, column: str) -> str:
        if is_absent(text):
            raise AbsentError(repr(text))
        behind = after_hashes(text)
        if behind is not None:
            self.after_hashes += 1
            return behind
        if self.format.name and column.rpartition(".")[2].lower() == SOLUTION:
            answer = of_solution(text)
            if answer is None:
                raise AbsentError("a solution without a box")
            return answer
        return text

    def _is_missing(self, row: Row, column: str) -> bool:
        """Return whether a row that may lack an answer does: the column has to be there only if the user named it."""
        try:
            return find_cell(row, column) in (None, "")
        except KeyError:
            return "answer" in self.format.guessed or "answer" not in self.format.columns

    def _cell(self, number: int, row: Row, column: str, field: str) -> str:
        value = self._value(number, row, column, field)
        if is_null(value):
            fix = "fill it in or leave the row out"
            raise UnusableError.at(self.source.text, f"{column!r} is null", fix, row=number)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            fix = f"make {column!r} text or a number, or map another column with columns.{field}"
            raise self._error(number, f"{column!r} holds a {type(value).__name__}", fix)
        if isinstance(value, float) and math.isinf(value):
            raise self._error(number, f"{column!r} holds a number that is not finite", "write the number as text")
        text = self._encodable(number, column, str(value).strip())
        if not text:
            fix = "fill it in or leave the row out"
            raise UnusableError.at(self.source.text, f"{column!r} is empty", fix, row=number)
        return text

    def _optional_cell(self, number: int, row: Row, field: str) -> str:
        """Return the cell, or "" if it holds nothing; only a column that the user named has to be there."""
        preset, column = self.format.preset, self.format.columns.get(field, field)
        asked_for = field in self.format.columns and not (preset and preset.columns.get(field) == column)
        try:
            value = find_cell(row, column)
        except KeyError:
            if not asked_for:
                return ""
            value = self._value(number, row, column, field)
        if value in (None, "") and not (asked_for and field == "uid"):
            return ""
        if isinstance(value, list | tuple | Mapping | bool) and not asked_for:
            return ""  # a column of that name may be anything
        return self._cell(number, row, column, field)

    def _info_cell(self, number: int, row: Row, column: str, field: str) -> Any:
        """Return the cell as it is, if it is data that JSON has too."""
        value = self._value(number, row, column, field)
        try:
            self._encodable(number, column, json.dumps(value, ensure_ascii=False))
        except TypeError as error:
            fix = f"make {column!r} text, a number, or lists and objects of these"
            raise self._error(number, f"{column!r} is not plain data ({error})", fix) from None
        return value

    def _optional_info(self, number: int, row: Row) -> dict[str, Any]:
        """The cells of `optional`, or all, that are there and that JSON has too; the names of our fields are ours."""
        return {
            column: self._info_cell(number, row, column, column)
            for column in (row if self.optional is None else self.optional)
            if column in row and column not in FIELDS and _is_plain(row[column])
        }

    def _value(self, number: int, row: Row, column: str, field: str) -> Any:
        """Return the cell of a field of ours, or of the environment's, that a column holds."""
        try:
            return find_cell(row, column)
        except KeyError:
            names = column_names(row)
            shown = ", ".join([*names[:_NAMES_SHOWN], *(["…"] if len(names) > _NAMES_SHOWN else [])])
            fix = f"the nearest column is {nearest(column, names)}, of {shown}; "
            fix += f"map it with columns.{field} (environment.columns={{{field}: NAME}})"
        error = MissingColumnError.at(self.source.text, f"no column {column!r}", fix, row=number)
        error.column, error.row = column, number
        raise error

    def _encodable(self, number: int, column: str, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            problem = f"{column!r} holds half a character (a lone surrogate)"
            raise self._error(number, problem, "write the whole character, or leave it out") from None
        return text

    def _error(self, number: int, problem: str, fix: str) -> DataError:
        return DataError.at(self.source.text, problem, fix, row=number)


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _content_hash(problem: str, answer: str, *further: str) -> str:
    text = "\x1f".join((problem, answer, *further))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
