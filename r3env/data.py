"""Queries from a data set: stable uids, and every mistake in the data named where it is."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

from r3env.core import Query
from r3env.grading import grade
from r3env.readers import DataError, Row, read_rows
from r3env.spelling import nearest

__all__ = ["DataError", "gold_check", "load_queries"]

_FIELDS = ("problem", "answer", "uid", "level")
_REQUIRED = ("problem", "answer")


def load_queries(
    source: str,
    *,
    columns: Mapping[str, str] | None = None,
    split: str = "train",
    limit: int | None = None,
) -> list[Query]:
    """Loads the queries of a data set, without exact duplicates.

    Args:
        source: A local .jsonl, .json, .parquet or .csv file, `embedded:train`, `embedded:heldout`, or a Hub
            id, `owner/name` or `owner/name:configuration`.
        columns: The data's name for each field of ours (`problem`, `answer`, `uid`, `level`) that differs. A
            data set without `uid` gets uids from a hash of the content, whatever the order of its rows.
        split: Split of a Hub data set.
        limit: Only this many queries, from the start; None for all.

    Raises:
        DataError: The data cannot be used; one line names the file, the row and the fix.
        ValueError: `limit` is not positive.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, it is {limit}")
    named = dict(columns or {})
    for field in named:
        if field not in _FIELDS:
            fix = f"map {nearest(field, _FIELDS)} (ours) to the data's name for it"
            raise DataError.at(source, f"columns: unknown field {field!r}", fix)
    queries: dict[str, Query] = {}
    first_row: dict[str, int] = {}
    for number, query in _queries(source, named, split):
        known = queries.setdefault(query.uid, query)
        first_row.setdefault(query.uid, number)
        if known != query:
            problem = f"uid {query.uid!r} already names other content in row {first_row[query.uid]}"
            raise DataError.at(source, problem, "give each problem its own uid", row=number)
        if len(queries) == limit:
            break
    if not queries:
        raise DataError.at(source, "holds no rows", "name a data set with at least one problem")
    return list(queries.values())


def gold_check(queries: Sequence[Query]) -> list[Query]:
    """The queries whose own reference answer, put in a box, is not graded correct.

    Whatever the policy answers, such a query can hardly ever be solved: leave it out or repair it.
    """
    return [query for query in queries if not grade(f"\\boxed{{{query.answer}}}", query.answer).correct]


def _queries(source: str, named: Mapping[str, str], split: str) -> Iterator[tuple[int, Query]]:
    for number, row in read_rows(source, split):
        problem, answer = (_cell(source, number, row, named.get(field, field)) for field in _REQUIRED)
        uid, level = (_optional_cell(source, number, row, named, field) for field in ("uid", "level"))
        yield number, Query(uid or _content_hash(problem, answer), problem, answer, level)


def _cell(source: str, number: int, row: Row, column: str) -> str:
    if column not in row:
        fix = f"the nearest column is {nearest(column, row)}; map it with columns"
        raise DataError.at(source, f"no column {column!r}", fix, row=number)
    value = row[column]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise DataError.at(source, f"{column!r} is null", "fill it in or leave the row out", row=number)
    if not isinstance(value, str | int | float):
        fix = f"make {column!r} text or a number, or map another column"
        raise DataError.at(source, f"{column!r} holds a {type(value).__name__}", fix, row=number)
    text = str(value).strip()
    if not text:
        raise DataError.at(source, f"{column!r} is empty", "fill it in or leave the row out", row=number)
    return text


def _optional_cell(source: str, number: int, row: Row, named: Mapping[str, str], field: str) -> str:
    if field not in named and row.get(field) in (None, ""):
        return ""
    return _cell(source, number, row, named.get(field, field))


def _content_hash(problem: str, answer: str) -> str:
    return hashlib.sha256(f"{problem}\x1f{answer}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
