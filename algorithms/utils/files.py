"""Files that are written whole or not at all, and synced to the disk."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes that name once the block has written it, or is deleted.

    Both the content and the name have reached the disk when this ends.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value: Any) -> Any:
    """Convert a value to types that strict JSON has.

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
