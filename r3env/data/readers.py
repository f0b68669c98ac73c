"""Rows of problems from files, from the package itself and from the Hub, one at a time.

No reader holds a file whole: a million rows take no more memory than a thousand.
"""

import csv
import importlib.resources
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from r3env.data.json_rows import Row, bad_byte_error, read_json, read_jsonl
from r3env.data.sources import EMBEDDED, FILE_TYPES, DataError, Source
from r3env.spelling import nearest

_PARQUET_BATCH_ROWS = 1024
# Readers of the library that open no pickles, as the one of `.tar` does; `cache` is for what one of them read before.
_HUB_READERS = ("csv", "json", "parquet", "cache")


def read_rows(source: Source) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a data set with their numbers, counting from 1 (in JSON Lines: the line's number).

    Raises:
        DataError: The source does not exist or cannot be read.
    """
    if source.kind == "embedded":
        return read_jsonl(source.text, _embedded(source))
    if source.kind == "hub":
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
        fix = f"the nearest name in {path.parent} is {close[0]!r}" if close else "name an existing file"
        raise DataError.at(source, "no such file", fix) from None
    except OSError as error:
        raise DataError.at(source, f"cannot be read ({error.strerror})", "name a readable file") from None


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
            raise DataError.at(source, f"incomplete CSV ({error})", "close the quotes", row=number + 1) from None
        except UnicodeDecodeError:
            raise bad_byte_error(source, path) from None


def _check_header(source: str, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
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


def hub_rows(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows with their numbers, counting from 1; the data set is downloaded once and then read from disk.

    Raises:
        DataError: It cannot be loaded, or its files are of another type than a local file may be.
    """
    # Imported here: it takes a second, and local files do not need it.
    import datasets

    try:
        # Chooses the reader by the names of the files; nothing is downloaded yet.
        builder = datasets.load_dataset_builder(source.name, source.configuration, revision=source.revision)
        _check_reader(source, type(builder).__module__.rpartition(".")[2])
        builder.download_and_prepare()
        rows = builder.as_dataset(split=source.split)
        kinds = (datasets.Image, datasets.Audio, datasets.Video, datasets.Pdf)
        for name, feature in rows.features.items():
            rows = rows.cast_column(name, as_stored) if (as_stored := _undecoded(feature, kinds)) else rows
    except DataError:
        raise
    # The last is the library's own family, for example of a failed generation.
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).partition("\n")[0]
        fix = f"check the id, the revision, the split {source.split!r} and the network, or name a local file"
        raise DataError.at(source.text, f"cannot be loaded from the Hub ({reason})", fix) from error
    yield from enumerate(rows, start=1)


def _undecoded(feature: Any, kinds: Any) -> Any:
    """Return the type of a column of pictures or sounds that keeps them as the file has them; None for another."""
    inner = getattr(feature, "feature", None)
    if inner is not None:
        return (kept := _undecoded(inner, kinds)) and replace(feature, feature=kept)
    return replace(feature, decode=False) if isinstance(feature, kinds) else None


def _check_reader(source: Source, reader: str) -> None:
    if reader not in _HUB_READERS:
        problem = f"holds files for the reader {reader!r} of `datasets`, some of which may run code or open pickles"
        raise DataError.at(source.text, problem, "name a data set of Parquet, JSON or CSV files")


_FILE_READERS = {".jsonl": read_jsonl, ".json": read_json, ".parquet": _parquet, ".csv": _csv}
