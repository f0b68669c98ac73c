"""Counts of the rows of a data set: used and left out, and what people should know of the references."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_LEAST_YES_NO = 0.01  # share of the queries from which guessing is worth a warning
_VALUES_SHOWN = 8
_LEFT_OUT = ("duplicates", "unusable", "unsuitable", "too_long")


@dataclass
class Counts:
    """Counts of the rows of a data set: used and left out.

    Args:
        rows: Rows that were read.
        duplicates: Rows that only repeat another one.
        unusable: Rows of a preset's data set without a problem or an answer.
        unsuitable: Rows that the preset leaves out, such as problems with pictures.
        too_long: Problems longer than the limit.
        absent: Rows left out because their reference says that there is none, by what it says: `proof`, `null`.
        queries: What is left.
        yes_no: Queries whose reference is yes or no, true or false.
        after_hashes: References read behind `####`.
        format: How the rows were recognized; empty where their columns are ours, or were named.
    """

    rows: int = 0
    duplicates: int = 0
    unusable: int = 0
    unsuitable: int = 0
    too_long: int = 0
    absent: Counter[str] = field(default_factory=Counter)
    queries: int = 0
    yes_no: int = 0
    after_hashes: int = 0
    format: str = ""

    def __str__(self) -> str:
        numbers = [(getattr(self, name), name.replace("_", " ")) for name in _LEFT_OUT]
        left_out = [f"{number} {name}" for number, name in numbers if number]
        if self.absent:
            most = self.absent.most_common(_VALUES_SHOWN)
            more = self.absent.total() - sum(number for _, number in most)
            shown = [f"{number} {value}" for value, number in most] + ([f"{more} more"] if more else [])
            left_out.append(f"{self.absent.total()} without a reference: {', '.join(shown)}")
        parts = f" ({'; '.join(left_out) if self.absent else ', '.join(left_out)} left out)" if left_out else ""
        return f"{self.queries} queries from {self.rows} rows{parts}"

    @property
    def incomplete(self) -> bool:
        """Whether rows were left out that may be missed."""
        return bool(self.too_long or self.unusable or self.absent)

    def remarks(self) -> Iterator[str]:
        """Yield what people should know besides the counts, a line each."""
        if self.format:
            yield f"{self.format}; to read others, name them in environment.columns"
        if self.after_hashes:
            yield f"{self.after_hashes} references are what stands behind #### in the answer, as in GSM8K"
        if self.queries and self.yes_no / self.queries >= _LEAST_YES_NO:
            share = f"{self.yes_no} of {self.queries} references ({self.yes_no / self.queries:.1%})"
            yield f"{share} are yes or no, true or false: a guess is paid half the time"
