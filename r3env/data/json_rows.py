"""Rows of JSON Lines and JSON lists, each decoded as soon as it is complete; errors name the row."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from r3env.data.sources import DataError

Row = Mapping[str, Any]

_CHUNK_CHARS = 1 << 16
_BLANKS = re.compile(r"\s*")
_LIST_FIX = "one JSON list of objects (.jsonl for one per line)"


def read_jsonl(source: str, path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the object of each line that is not blank, with the line's number."""
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
                problem = f"incomplete or invalid JSON ({error.msg}, column {error.colno})"
                raise DataError.at(source, problem, "one complete JSON object on each line", row=number) from None
            except (ValueError, RecursionError) as error:
                raise _rejection(source, error, row=number) from None
            yield number, _to_row(source, number, row)


def read_json(source: str, path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the objects of one JSON list with their numbers, counting from 1."""
    number = 0
    with path.open(encoding="utf-8-sig") as file:
        text = _JsonText(file)
        try:
            if text.peek() not in ("[", ""):
                kind = type(_DECODER.decode(text.rest())).__name__
                raise DataError.at(source, f"holds a JSON {kind}", _LIST_FIX)
            text.expect("[")
            while text.peek() != "]":
                if number:
                    text.expect(",")
                number += 1
                yield number, _to_row(source, number, text.element())
            text.expect("]")
            text.expect("")
        except json.JSONDecodeError as error:
            problem = f"incomplete or invalid JSON ({error.msg})"
            raise DataError.at(source, problem, _LIST_FIX, row=max(number, 1)) from None
        except UnicodeDecodeError:
            raise bad_byte_error(source, path) from None
        except (ValueError, RecursionError) as error:
            raise _rejection(source, error, row=max(number, 1)) from None


def _to_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _RepeatedError(f"the key {repeated!r} occurs twice in one object")
    return members


class _RepeatedError(ValueError):
    """A JSON object holds a key twice, so nobody knows which is meant."""


_DECODER = json.JSONDecoder(object_pairs_hook=_to_members)


def _rejection(source: str, error: ValueError | RecursionError, *, row: int) -> DataError:
    """Return the error for JSON that is not torn, but cannot be taken."""
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
        self._text, self._at = "", 0  # what is before that place is taken

    def peek(self) -> str:
        """Return the next character, or "" at the end."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            self._at = blanks.end() if blanks else self._at
            if self._at < len(self._text) or not self._read(_CHUNK_CHARS):
                return self._text[self._at : self._at + 1]

    def expect(self, character: str) -> None:
        """Take this character, or nothing at the end for ""."""
        if self.peek() != character:
            wanted = f"'{character}'" if character else "nothing more"
            raise json.JSONDecodeError(f"expecting {wanted}", self._text, self._at)
        self._at += len(character)

    def element(self) -> object:
        """Take the next value."""
        self.peek()
        wanted = _CHUNK_CHARS
        while True:
            try:
                element, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._read(wanted):
                    raise
            else:
                # At the very end of what is read, a number may go on.
                if end < len(self._text) or not self._read(wanted):
                    self._at = end
                    return element
            wanted *= 2  # so that a huge element is not parsed again for every chunk of it

    def rest(self) -> str:
        """Return everything that is left."""
        return self._text[self._at :] + self._file.read()

    def _read(self, characters: int) -> bool:
        more = self._file.read(characters)
        if more:
            self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)


def _to_row(source: str, number: int, row: object) -> Row:
    if isinstance(row, list) and row and all(isinstance(part, dict) for part in row):
        return {str(place): part for place, part in enumerate(row)}  # as Open-Reasoner-Zero's: two turns
    if not isinstance(row, dict):
        raise DataError.at(source, f"a JSON {type(row).__name__}", "make each row a JSON object", row=number)
    return row


def bad_byte_error(source: str, path: Path) -> DataError:
    """Return the error for a text file that is not UTF-8, with the line where that shows first."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return _not_utf8(source, line[error.start], row=number)
    raise RuntimeError(f"{source} changed while it was read")


def _not_utf8(source: str, byte: int, *, row: int) -> DataError:
    return DataError.at(source, f"not UTF-8 (byte 0x{byte:02x})", "save the file as UTF-8", row=row)
