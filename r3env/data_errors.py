"""The error of a data set that cannot be used."""

from typing import Self


class DataError(ValueError):
    """A data set that cannot be used; the message is one line that names the place and the fix."""

    @classmethod
    def at(cls, source: str, problem: str, fix: str, *, row: int | None = None) -> Self:
        """Composes the line from the source, the row (counting from 1), what is wrong and what to do."""
        place = source if row is None else f"{source}: row {row}"
        return cls(" ".join(f"{place}: {problem}; fix: {fix}".split()))
