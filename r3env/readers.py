"""Rows of problems from files, from the package itself and from the Hub."""

import csv
import importlib.resources
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from r3env.spelling import nearest

EMBEDDED = ("train", "heldout")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")

Row = Mapping[str, Any]


class DataError(ValueError):
    """A data set that cannot be used; the message is one line that names the place and the fix."""

    @classmethod
    def at(cls, source: str, problem: str, fix: str, *, row: int | None = None) -> Self:
        """Composes the line from the source, the row (counting from 1), what is wrong and what to do."""
        place = source if row is None else f"{source}: row {row}"
        return cls(" ".join(f"{place}: {problem}; fix: {fix}".split()))


def read_rows(source: str, split: str) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a data set with their numbers, counting from 1 (in JSON Lines: the line's number).

    Args:
        source: `embedded:NAME`, a local file, or a Hub id `owner/name`, `owner/name:configuration`.
        split: Split of a Hub data set.

    Raises:
        DataError: The source does not exist or cannot be read.
    """
    if source.startswith("embedded:"):
        return _jsonl(source, _embedded_bytes(source))
    path = Path(source).expanduser()
    reader = _FILE_READERS.get(path.suffix.lower())
    if reader is not None:
        return reader(source, _file_bytes(source, path))
    if path.exists():
        kind = "is a folder" if path.is_dir() else f"has no known format ({path.suffix or 'no suffix'})"
        raise DataError.at(source, kind, f"name a file that ends in {', '.join(_FILE_READERS)}")
    if _HUB_ID.fullmatch(source):
        return _hub(source, split)
    raise DataError.at(source, "neither a file nor a Hub id", f"name a file ({', '.join(_FILE_READERS)}) or owner/name")


def _embedded_bytes(source: str) -> bytes:
    name = source.removeprefix("embedded:")
    if name not in EMBEDDED:
        raise DataError.at(source, "no such embedded problems", f"embedded:{nearest(name, EMBEDDED)[1:-1]}")
    try:
        return importlib.resources.files("r3env").joinpath("assets", f"{name}.jsonl").read_bytes()
    except FileNotFoundError:
        raise DataError.at(source, "missing from this installation", "install the package again") from None


def _file_bytes(source: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise DataError.at(source, "no such file", f"there is no folder {path.parent}") from None
        close = nearest(path.name, (entry.name for entry in path.parent.iterdir()))
        raise DataError.at(source, "no such file", f"the nearest name in {path.parent} is {close}") from None
    except OSError as error:
        raise DataError.at(source, f"cannot be read ({error.strerror})", "name a readable file") from None


def _text(source: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = raw.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{raw[error.start]:02x}"
        raise DataError.at(source, f"not UTF-8 ({byte})", "save the file as UTF-8", row=row) from None


def _jsonl(source: str, raw: bytes) -> Iterator[tuple[int, Row]]:
    # Not str.splitlines: JSON strings may hold U+2028 and its kin as they are.
    for number, line in enumerate(_text(source, raw).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            problem = f"torn or invalid JSON ({error.msg}, column {error.colno})"
            raise DataError.at(source, problem, "one complete JSON object on each line", row=number) from None
        yield number, _checked(source, number, row)


def _json(source: str, raw: bytes) -> Iterator[tuple[int, Row]]:
    try:
        rows = json.loads(_text(source, raw))
    except json.JSONDecodeError as error:
        problem = f"torn or invalid JSON ({error.msg}, line {error.lineno}, column {error.colno})"
        raise DataError.at(source, problem, "one JSON list of objects (.jsonl for one a line)") from None
    if not isinstance(rows, list):
        raise DataError.at(source, f"holds a JSON {type(rows).__name__}", "one JSON list of objects")
    for number, row in enumerate(rows, start=1):
        yield number, _checked(source, number, row)


def _checked(source: str, number: int, row: object) -> Row:
    if not isinstance(row, dict):
        raise DataError.at(source, f"a JSON {type(row).__name__}", "make each row a JSON object", row=number)
    return row


def _csv(source: str, raw: bytes) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(sys.maxsize)  # a long solution is a legal cell; the default limit is 128 KiB
    lines = csv.DictReader(io.StringIO(_text(source, raw), newline=""), strict=True)
    number = 0
    try:
        for number, row in enumerate(lines, start=1):
            if None in row:
                raise DataError.at(source, "more cells than the header", "quote cells with commas", row=number)
            yield number, row
    except csv.Error as error:
        raise DataError.at(source, f"torn CSV ({error})", "close the quotes", row=number + 1) from None


def _parquet(source: str, raw: bytes) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(raw))
    except (pa.ArrowException, OSError) as error:
        raise DataError.at(source, f"not a Parquet file ({error})", "write the file again") from None
    yield from enumerate(table.to_pylist(), start=1)


def _hub(source: str, split: str) -> Iterator[tuple[int, Row]]:
    # Imported here: it takes a second, and local files do not need it.
    import datasets

    name, _, configuration = source.partition(":")
    try:
        rows = datasets.load_dataset(name, configuration or None, split=split)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        fix = f"check the id, the split {split!r} and the network, or name a local file"
        raise DataError.at(source, f"cannot be loaded from the Hub ({reason})", fix) from error
    yield from enumerate(rows, start=1)


_FILE_READERS = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet, ".csv": _csv}
