"""Files that are written completely or not at all, and synced to the disk."""

import contextlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# Of a table that is written: what is not written yet takes no memory.
ROWS_AT_ONCE = 256


def read_file(path: Path) -> bytes:
    """Return a file's content; what a device or a pipe has may never end.

    Raises:
        OSError, ValueError: it cannot be read, or is no regular file.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a file")
    return path.read_bytes()


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it takes that name once the block has written it, or is deleted.

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


def user_path(text: str | Path) -> Path:
    """Return the path that a user wrote, where `~` is the home; the home of nobody stays as it is written."""
    return Path(os.path.expanduser(text))


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, with all their names on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_name(made)


def sync_name(path: Path) -> None:
    """Wait until the name of a file or folder is on the disk."""
    with contextlib.suppress(PermissionError):  # a folder that may be written to and not read cannot be opened
        sync(path.parent)


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
    raise TypeError(f"{type(value).__name__} is not a JSON value: {value!r}")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON so that a reader finds the old file or the new one, never a part."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return indented JSON; NaN and the infinities become null."""
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, completely or not at all."""
    with replaced_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_parquet(path: Path, rows: Iterable[Mapping[str, Any]], schema: "pa.Schema") -> None:
    """Write rows, zstd-compressed, in place of any file of that name; make its folder if missing.

    Rows are read as they are written, `ROWS_AT_ONCE` at a time. Text that is not valid Unicode (a lone surrogate) gets
    `?` in its place.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    make_folder(path.parent)
    records = ({key: _encodable(value) for key, value in row.items()} for row in rows)
    with (
        replaced_whole(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        while part := list(itertools.islice(records, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(part, schema=schema))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value
