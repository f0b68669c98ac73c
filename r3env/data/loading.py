"""Load queries from a data set: stable uids, and errors that name the place of every mistake in the data."""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from r3env.core import Query
from r3env.data.query_table import QueryTable
from r3env.data.readers import Row, read_rows
from r3env.data.sources import DataError, MissingColumnError, Source, parse_source
from r3env.spelling import nearest

FIELDS = ("problem", "answer", "uid", "level")
_logger = logging.getLogger(__name__)


@dataclass
class Counts:
    """Counts of the rows of a data set: used and left out.

    Args:
        rows: Rows that were read.
        duplicates: Rows that only repeat another one.
        unusable: Rows of a preset's data set without a problem or an answer.
        unsuitable: Rows that the preset leaves out, such as problems with pictures.
        too_long: Problems longer than the limit.
        queries: What is left.
    """

    rows: int = 0
    duplicates: int = 0
    unusable: int = 0
    unsuitable: int = 0
    too_long: int = 0
    queries: int = 0

    def __str__(self) -> str:
        left_out = [
            f"{getattr(self, field.name)} {field.name.replace('_', ' ')}"
            for field in fields(self)
            if field.name not in ("rows", "queries") and getattr(self, field.name)
        ]
        parts = f" ({', '.join(left_out)} left out)" if left_out else ""
        return f"{self.queries} queries from {self.rows} rows{parts}"


@dataclass(frozen=True)
class Selection:
    """Which rows become queries, and how.

    Args:
        columns: The data's name for each field of ours (`problem`, `answer`, `uid`, `level`) that differs. A data
            set without `uid` gets uids from a hash of problem and answer, whatever the order of its rows. Any other
            name here, such as `hint`, is that of a column to keep in `Query.info`.
        limit: Only this many queries, from the start; None for all.
        max_prompt_length: Leaves out problems whose prompt is longer; None for no limit.
        prompt_length: What is compared with `max_prompt_length`; the default counts the problem's characters.
        optional: Columns to keep in `Query.info` too, under their own names, where a row has them and they are plain
            data; None for every column.
        whole_row: Whether a row may lack an answer, and two rows that differ only in `Query.info` are two queries.

    Raises:
        ValueError: A limit is not positive.
    """

    columns: Mapping[str, str] | None = None
    limit: int | None = None
    max_prompt_length: int | None = None
    prompt_length: Callable[[Query], int] | None = None
    optional: Collection[str] | None = ()
    whole_row: bool = False

    def __post_init__(self) -> None:
        for name in ("limit", "max_prompt_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, it is {value}")

    def same(self, one: Query, other: Query) -> bool:
        """Return whether two rows of one uid are one query: they may differ in unused fields."""
        if self.whole_row or not self.optional:
            return one == other
        return replace(one, info=self._asked_for(one)) == replace(other, info=self._asked_for(other))

    def _asked_for(self, query: Query) -> dict[str, Any]:
        return {name: each for name, each in query.info.items() if name not in (self.optional or ())}

    def too_long(self, query: Query) -> bool:
        """Return whether the length limit leaves this query out."""
        if self.max_prompt_length is None:
            return False
        length = self.prompt_length(query) if self.prompt_length else len(query.problem)
        return length > self.max_prompt_length


def load_queries(
    source: str,
    *,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    revision: str | None = None,
    preset: str | None = None,
    max_prompt_length: int | None = None,
    prompt_length: Callable[[Query], int] | None = None,
) -> list[Query]:
    """Load the queries of a data set, without exact duplicates, into a list; `load_table` keeps them on disk.

    Args:
        source: A local .jsonl, .json, .parquet or .csv file, `embedded:train` (`heldout`, `variants`), `preset:NAME`,
            or a Hub id `owner/name[:configuration][@revision][#split]`.
        columns: See `Selection`.
        split: Split of a Hub data set; None for the one in `source`, else the preset's, else `train`.
        limit: See `Selection`.
        revision: Branch, tag or commit of a Hub data set.
        preset: Reads the rows by this preset, see `r3env.data.presets`; a Hub id that has one needs none.
        max_prompt_length: See `Selection`.
        prompt_length: See `Selection`.

    Raises:
        DataError: The data cannot be used; one line names the file, the row and the fix.
        ValueError: A limit is not positive.
    """
    selection = Selection(columns, limit, max_prompt_length, prompt_length)
    table, _ = load_table(parse_source(source, split=split, revision=revision, preset=preset), selection)
    return list(table.values())


def load_table(source: Source, selection: Selection | None = None) -> tuple[QueryTable, Counts]:
    """Load the queries of a data set onto disk, however many there are, and count what was left out.

    Raises:
        DataError: The data cannot be used; one line names the file, the row and the fix.
    """
    selection = selection or Selection()
    table, counts = QueryTable(), Counts()
    for number, query in _queries(source, selection, counts):
        if selection.too_long(query):
            counts.too_long += 1
            continue
        known = table.add(query, number)
        if known is not None and not selection.same(known[0], query):
            problem = f"uid {query.uid!r} already names other content in row {known[1]}"
            raise DataError.at(source.text, problem, "give each problem its own uid", row=number)
        counts.duplicates += known is not None
        if len(table) == selection.limit:
            break
    counts.queries = len(table)
    if not counts.rows:
        raise DataError.at(source.text, "holds no rows", "name a data set with at least one problem")
    if not table:
        raise DataError.at(source.text, f"leaves no queries: {counts}", "raise the limit or use other data")
    _logger.log(logging.WARNING if counts.too_long or counts.unusable else logging.INFO, "%s: %s", source.text, counts)
    return table, counts


def _queries(source: Source, selection: Selection, counts: Counts) -> Iterator[tuple[int, Query]]:
    columns = _columns(source, selection.columns or {})
    for number, row in read_rows(source):
        counts.rows += 1
        if source.preset and any(row.get(name, value) != value for name, value in source.preset.only.items()):
            counts.unsuitable += 1
            continue
        try:
            yield number, _query(source, number, row, columns, selection)
        except _UnusableError:
            # A published data set cannot be repaired by whoever trains on it; a file of one's own can.
            if source.preset is None:
                raise
            counts.unusable += 1


class _UnusableError(DataError):
    """A problem or an answer is missing in a row whose columns are there."""


def _columns(source: Source, given: Mapping[str, str]) -> dict[str, str]:
    return {**(source.preset.columns if source.preset else {}), **given}


def _query(source: Source, number: int, row: Row, columns: Mapping[str, str], selection: Selection) -> Query:
    preset = source.preset
    if preset and preset.pose:
        row = {**row, **_posed(source, number, row, preset.pose)}
    problem = _cell(source, number, row, columns.get("problem", "problem"), "problem")
    column = columns.get("answer", "answer")
    if preset and column in row:
        row = {**row, column: preset.answer(row[column])}
    if selection.whole_row:
        answer = _optional_cell(source, number, row, columns, "answer")
    else:
        answer = _cell(source, number, row, column, "answer")
    if preset and preset.context and isinstance(context := row.get(preset.context), str) and context.strip():
        problem = f"{_encodable(source, number, preset.context, context.strip())}\n\n{problem}"
    uid = _optional_cell(source, number, row, columns, "uid")
    level = _optional_cell(source, number, row, columns, "level")
    further = {field: column for field, column in columns.items() if field not in FIELDS}
    info = {field: _info_cell(source, number, row, column, field) for field, column in further.items()}
    info = {**_optional_info(source, number, row, selection.optional), **info}
    identity = json.dumps(info, sort_keys=True) if selection.whole_row and info else ""
    return Query(uid or _content_hash(problem, answer, identity), problem, answer, level, info)


def _posed(source: Source, number: int, row: Row, pose: Callable[[Row], Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        return pose(row)
    except KeyError as error:
        _value(source, number, row, str(error.args[0]), str(error.args[0]))
        raise


def _cell(source: Source, number: int, row: Row, column: str, field: str) -> str:
    value = _value(source, number, row, column, field)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise _UnusableError.at(source.text, f"{column!r} is null", "fill it in or leave the row out", row=number)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        fix = f"make {column!r} text or a number, or map another column"
        raise DataError.at(source.text, f"{column!r} holds a {type(value).__name__}", fix, row=number)
    if isinstance(value, float) and math.isinf(value):
        fix = "write the number as text"
        raise DataError.at(source.text, f"{column!r} holds a number that is not finite", fix, row=number)
    text = _encodable(source, number, column, str(value).strip())
    if not text:
        raise _UnusableError.at(source.text, f"{column!r} is empty", "fill it in or leave the row out", row=number)
    return text


def _info_cell(source: Source, number: int, row: Row, column: str, field: str) -> Any:
    """The cell as it is, if it is data that JSON has too."""
    value = _value(source, number, row, column, field)
    try:
        _encodable(source, number, column, json.dumps(value, ensure_ascii=False))
    except TypeError as error:
        fix = f"make {column!r} text, a number, or lists and objects of these"
        raise DataError.at(source.text, f"{column!r} is not plain data ({error})", fix, row=number) from None
    return value


def _optional_info(source: Source, number: int, row: Row, names: Collection[str] | None) -> dict[str, Any]:
    """The cells of these columns, or of all, that are there and that JSON has too; the names of our fields are ours."""
    kept = {}
    for column in row if names is None else names:
        if column in row and column not in FIELDS and _is_plain(row[column]):
            kept[column] = _info_cell(source, number, row, column, column)
    return kept


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _value(source: Source, number: int, row: Row, column: str, field: str) -> Any:
    """Return the cell of a field of ours, or of the environment's, that a column holds."""
    if column not in row:
        fix = f"the nearest column is {nearest(column, row)}, of {', '.join(row)}; map it with columns.{field}"
        error = MissingColumnError.at(source.text, f"no column {column!r}", fix, row=number)
        error.column, error.row = column, number
        raise error
    return row[column]


def _encodable(source: Source, number: int, column: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = f"{column!r} holds half a character (a lone surrogate)"
        fix = "write the whole character, or leave it out"
        raise DataError.at(source.text, problem, fix, row=number) from None
    return text


def _optional_cell(source: Source, number: int, row: Row, columns: Mapping[str, str], field: str) -> str:
    """The cell, or "" if it holds nothing; only a column that the user named has to be there."""
    column = columns.get(field, field)
    asked_for = field in columns and not (source.preset and source.preset.columns.get(field) == column)
    if row.get(column) in (None, "") and not (asked_for and (field == "uid" or column not in row)):
        return ""
    return _cell(source, number, row, column, field)


def _content_hash(problem: str, answer: str, further: str = "") -> str:
    text = f"{problem}\x1f{answer}" + (f"\x1f{further}" if further else "")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
