"""Files such as metrics.jsonl: one JSON object a line, one line a step."""

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
    """Return the rows in order; none when there is no file yet. A torn last line is left out.

    Raises:
        ValueError: a line before the last one is not a JSON object with an integer `step`.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    # What follows the last newline is empty, or a line that was never finished.
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise ValueError(f"{path}, line {number}: not a JSON object with a step")
        rows.append(row)
    return rows


def drop_torn_line(path: Path) -> None:
    """Cut off a last line that was never finished."""
    if not path.exists():
        return
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def keep_until(path: Path, step: int) -> None:
    """Drop the rows of later steps, and a torn last line with them."""
    if path.exists():
        write_text(path, "".join(_line(row) for row in read(path) if row["step"] <= step))


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(plain(row), allow_nan=False) + "\n"
