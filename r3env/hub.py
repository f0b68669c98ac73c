"""Rows of a data set on the Hugging Face Hub."""

from collections.abc import Iterator, Mapping
from typing import Any

from r3env.data_errors import DataError
from r3env.sources import Source

# Readers of the library that open no pickles, as the one of `.tar` does; `cache` is for what one of them read before.
_READERS = ("csv", "json", "parquet", "cache")


def hub_rows(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows with their numbers, counting from 1; the data set is downloaded once and then read from disk.

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
    except DataError:
        raise
    # The last is the library's own family, for example of a failed generation.
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).partition("\n")[0]
        fix = f"check the id, the revision, the split {source.split!r} and the network, or name a local file"
        raise DataError.at(source.text, f"cannot be loaded from the Hub ({reason})", fix) from error
    yield from enumerate(rows, start=1)


def _check_reader(source: Source, reader: str) -> None:
    if reader not in _READERS:
        problem = f"holds files for the reader {reader!r} of `datasets`, some of which may run code or open pickles"
        raise DataError.at(source.text, problem, "name a data set of Parquet, JSON or CSV files")
