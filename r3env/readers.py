"""Rows of problems from files, from the package itself and from the Hub, one at a time.

No reader holds a file whole: a million rows take no more memory than a thousand.
"""

import csv
import importlib.resources
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

from r3env.data_errors import DataError
from r3env.sources import EMBEDDED, FILE_TYPES, Source
from r3env.spelling import nearest

Row = Mapping[str, Any]

_CHUNK_CHARS = 1 << 16
_PARQUET_BATCH_ROWS = 1024
_JSON_FIX = "one JSON list of objects (.jsonl for one a line)"


def read_rows(source: Source) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a data set with their numbers, counting from 1 (in JSON Lines: the line's number).

    Raises:
        DataError: The source does not exist or cannot be read.
    """
    if source.kind == "embedded":
        return _jsonl(source.text, _embedded(source))
    if source.kind == "hub":
        from r3env.hub import hub_rows  # imported here: only Hub data sets need it

        return hub_rows(source)
    path = Path(source.name)
    _check_file(source.text, path)
    return _FILE_READERS[path.suffix.lower()](source.text, path)


def _embedded(source: Source) -> Path:
    if source.name not in EMBEDDED:
        fix = f"embedded:{nearest(source.name, EMBEDDED)[1:-1]}"
        raise DataError.at(source.text, "no such embedded problems", fix)
    path = Path(str(importlib.resources.files("r3env").joinpath("assets", f"{source.name}.jsonl")))
    if not path.is_file():
        raise DataError.at(source.text, "missing from this installation", "install the package again")
    return path


def _check_file(source: str, path: Path) -> None:
    if path.suffix.lower() not in FILE_TYPES:
        kind = "is a folder" if path.is_dir() else f"has no known format ({path.suffix or 'no suffix'})"
        raise DataError.at(source, kind, f"name a file that ends in {', '.join(FILE_TYPES)}")
    try:
        with path.open("rb"):
            return
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise DataError.at(source, "no such file", f"there is no folder {path.parent}") from None
        names = (entry.name for entry in path.parent.iterdir() if entry.suffix.lower() in FILE_TYPES)
        close = get_close_matches(path.name, names, n=1, cutoff=0.6)
        fix = f"the nearest name in {path.parent} is {close[0]!r}" if close else "name a file that is there"
        raise DataError.at(source, "no such file", fix) from None
    except OSError as error:
        raise DataError.at(source, f"cannot be read ({error.strerror})", "name a readable file") from None


def _jsonl(source: str, path: Path) -> Iterator[tuple[int, Row]]:
    with path.open("rb") as file:
        # Lines of bytes end at \n alone: JSON strings may hold U+2028 and its kin as they are.
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = _DECODER.decode(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise _not_utf8(source, line[error.start], row=number) from None
            except json.JSONDecodeError as error:
                problem = f"torn or invalid JSON ({error.msg}, column {error.colno})"
                raise DataError.at(source, problem, "one complete JSON object on each line", row=number) from None
            except (ValueError, RecursionError) as error:
                raise _refused(source, error, row=number) from None
            yield number, _checked(source, number, row)


def _json(source: str, path: Path) -> Iterator[tuple[int, Row]]:
    """The elements of one JSON list, each decoded as soon as it is complete."""
    number = 0
    with path.open(encoding="utf-8-sig") as file:
        text = _JsonText(file)
        try:
            if text.peek() not in ("[", ""):
                kind = type(_DECODER.decode(text.rest())).__name__
                raise DataError.at(source, f"holds a JSON {kind}", _JSON_FIX)
            text.expect("[")
            while text.peek() != "]":
                if number:
                    text.expect(",")
                number += 1
                yield number, _checked(source, number, text.element())
            text.expect("]")
            text.expect("")
        except json.JSONDecodeError as error:
            problem = f"torn or invalid JSON ({error.msg})"
            raise DataError.at(source, problem, _JSON_FIX, row=max(number, 1)) from None
        except UnicodeDecodeError:
            raise _first_bad_byte(source, path) from None
        except (ValueError, RecursionError) as error:
            raise _refused(source, error, row=max(number, 1)) from None


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in members if names.count(name) > 1)
        raise _RepeatedError(f"the key {repeated!r} stands twice in one object")
    return members


class _RepeatedError(ValueError):
    """A JSON object holds a key twice, so nobody knows which is meant."""


_DECODER = json.JSONDecoder(object_pairs_hook=_members)


def _refused(source: str, error: ValueError | RecursionError, *, row: int) -> DataError:
    """The error for JSON that is not torn, but cannot be taken."""
    if isinstance(error, DataError):
        return error
    if isinstance(error, _RepeatedError):
        return DataError.at(source, ascii(str(error))[1:-1], "name each key once", row=row)
    if isinstance(error, RecursionError):
        return DataError.at(source, "JSON that is nested too deeply", "leave that part out", row=row)
    # The one thing that is left is Python's own limit.
    return DataError.at(source, "a number of too many digits", "write it as text, in quotes", row=row)


class _JsonText:
    """JSON text that is read as far as it is needed; blanks in front of what comes next do not count."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""

    def peek(self) -> str:
        """The next character, or "" at the end."""
        self._text = self._text.lstrip()
        while not self._text and self._read(_CHUNK_CHARS):
            self._text = self._text.lstrip()
        return self._text[:1]

    def expect(self, character: str) -> None:
        """Takes this character, or nothing at the end for ""."""
        if self.peek() != character:
            wanted = f"'{character}'" if character else "nothing more"
            raise json.JSONDecodeError(f"expecting {wanted}", self._text, 0)
        self._text = self._text[1:]

    def element(self) -> object:
        """Takes the next value."""
        self.peek()
        wanted = _CHUNK_CHARS
        while True:
            try:
                element, end = _DECODER.raw_decode(self._text)
            except json.JSONDecodeError:
                if not self._read(wanted):
                    raise
            else:
                # At the very end of what is read, a number may go on.
                if end < len(self._text) or not self._read(wanted):
                    self._text = self._text[end:]
                    return element
            wanted *= 2  # so that a huge element is not parsed again for every chunk of it

    def rest(self) -> str:
        """Everything that is left."""
        return self._text + self._file.read()

    def _read(self, characters: int) -> bool:
        more = self._file.read(characters)
        self._text += more
        return bool(more)


def _checked(source: str, number: int, row: object) -> Row:
    if not isinstance(row, dict):
        raise DataError.at(source, f"a JSON {type(row).__name__}", "make each row a JSON object", row=number)
    return row


def _csv(source: str, path: Path) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(sys.maxsize)  # a long solution is a legal cell; the default limit is 128 KiB
    number = 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.DictReader(file, strict=True)
        try:
            _check_header(source, lines.fieldnames or ())
            for number, row in enumerate(lines, start=1):
                if None in row:
                    raise DataError.at(source, "more cells than the header", "quote cells with commas", row=number)
                yield number, row
        except csv.Error as error:
            raise DataError.at(source, f"torn CSV ({error})", "close the quotes", row=number + 1) from None
        except UnicodeDecodeError:
            raise _first_bad_byte(source, path) from None


def _check_header(source: str, names: Sequence[str]) -> None:
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise DataError.at(source, f"the header names the column {repeated[0]!r} twice", "name each column once")


def _parquet(source: str, path: Path) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        # Without a memory map and pre-buffering, a row group is read page by page.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
            _check_header(source, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError) as error:
        raise DataError.at(source, f"not a Parquet file ({error})", "write the file again") from None


def _first_bad_byte(source: str, path: Path) -> DataError:
    """The error for a text file that is not UTF-8, with the line where that shows first."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return _not_utf8(source, line[error.start], row=number)
    raise RuntimeError(f"{source} changed while it was read")


def _not_utf8(source: str, byte: int, *, row: int) -> DataError:
    return DataError.at(source, f"not UTF-8 (byte 0x{byte:02x})", "save the file as UTF-8", row=row)


_FILE_READERS = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet, ".csv": _csv}
