"""Files such as metrics.jsonl: one JSON object per line, one line per step."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.utils.files import plain, sync, write_text


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row; it is on the disk when this returns.

    Raises:
        TypeError: a value is nothing that JSON has.
    """
    line, is_new = _line(row), not path.exists()
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync(path.parent)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows in order; none if there is no file yet. An incomplete last line is left out.

    Raises:
        ValueError: a line before the last one is not a JSON object with an integer `step`.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(_whole_lines(path.read_bytes()), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise ValueError(f"{path}, line {number}: not a JSON object with a step")
        rows.append(row)
    return rows


def drop_torn_line(path: Path) -> None:
    """Cut off an incomplete last line."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = sum(len(line) + 1 for line in _whole_lines(content))
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


def keep_until(path: Path, step: int) -> int:
    """Drop the rows of later steps, and an incomplete last line; the rows before stay as they are, byte for byte.

    Returns:
        How many whole rows were dropped.
    """
    if not path.exists():
        return 0
    stored, end = path.read_bytes(), bytes_until(path, step)
    write_text(path, stored[:end].decode())
    return stored.count(b"\n", end)


def bytes_until(path: Path, step: int) -> int:
    """Count the bytes of the rows up to a step. Raises as `read`."""
    kept = sum(row["step"] <= step for row in read(path))
    return sum(len(line) + 1 for line in _whole_lines(path.read_bytes())[:kept])


def with_last_changed(path: Path, values: Mapping[str, Any]) -> str:
    """Return the text of the rows with values added to the last one, in place of those of the same names."""
    *lines, last = (line.decode() for line in _whole_lines(path.read_bytes()))
    return "".join(f"{line}\n" for line in lines) + _line({**json.loads(last), **values})


def _whole_lines(content: bytes) -> list[bytes]:
    """Cut at newlines; leave out a last line that a kill cut off, or of which a power failure left blocks of zeros."""
    *lines, rest = content.split(b"\n")
    if not rest and lines and b"\0" in lines[-1]:
        lines.pop()
    return lines


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(plain(row), allow_nan=False) + "\n"
