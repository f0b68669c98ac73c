"""Rows of a data set on the Hugging Face Hub."""

from collections.abc import Iterator, Mapping
from typing import Any

from r3env.data_errors import DataError
from r3env.sources import Source


def hub_rows(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows with their numbers, counting from 1; the data set is downloaded once and then read from disk.

    Raises:
        DataError: It cannot be loaded.
    """
    # Imported here: it takes a second, and local files do not need it.
    import datasets

    try:
        rows = datasets.load_dataset(source.name, source.configuration, split=source.split, revision=source.revision)
    # The last is the library's own family, for example of a failed generation.
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).partition("\n")[0]
        fix = f"check the id, the revision, the split {source.split!r} and the network, or name a local file"
        raise DataError.at(source.text, f"cannot be loaded from the Hub ({reason})", fix) from error
    yield from enumerate(rows, start=1)
