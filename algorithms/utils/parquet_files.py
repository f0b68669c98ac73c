"""Rows as Parquet files that are written whole or not at all."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from algorithms.utils.files import replaced_whole


def write_parquet(path: Path, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Write rows, zstd-compressed; a file of that name is replaced whole, and its folder is made when missing.

    Text that is not valid Unicode (a lone surrogate) gets `?` in its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{key: _encodable(value) for key, value in row.items()} for row in rows]
    with replaced_whole(path) as temporary:
        pq.write_table(pa.Table.from_pylist(records, schema=schema), temporary, compression="zstd")


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value
