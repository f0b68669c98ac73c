"""JSON as the run directory writes it: only plain values, and files that are whole or absent."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.runs.whole_files import replaced_whole


def plain(value: Any) -> Any:
    """Turn a value into what strict JSON knows.

    NaN and the infinities become None, numpy and torch scalars Python numbers, paths text.

    Raises:
        TypeError: for anything else that JSON can't hold, an array among it.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "size", 1) != 0 and getattr(value, "ndim", 0) == 0:
        return plain(value.item())
    raise TypeError(f"{type(value).__name__} is no JSON value: {value!r}")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON so that a reader finds the old file or the new one, never a part."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with replaced_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
