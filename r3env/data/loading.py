"""Load queries from a data set: stable uids, and errors that name the place of every mistake in the data."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from r3env.core import Query
from r3env.data.options import OptionsError
from r3env.data.other_forms import is_prose
from r3env.data.query_table import QueryTable
from r3env.data.readers import read_rows
from r3env.data.recognition import Format, recognize
from r3env.data.references import is_yes_no
from r3env.data.rows import AbsentError, MalformedError, RowReader, UnusableError
from r3env.data.sources import DataError, Source, parse_source

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
        malformed: The line about the first unusable row whose options or answer cannot be read.
        unsuitable: Rows that the preset leaves out, such as problems with pictures.
        too_long: Problems longer than the limit.
        absent: Rows left out because their reference says that there is none, by what it says: `proof`, `null`.
        queries: What is left.
        yes_no: Queries whose reference is yes or no, true or false.
        prose: Queries whose reference is a text that nobody writes word for word.
        after_hashes: References read behind `####`.
        lists: References that are lists of several answers.
        not_posed: By column, problems without the text that stands in it.
        format: How the rows were recognized; empty where their columns are ours, or were named.
    """

    rows: int = 0
    duplicates: int = 0
    unusable: int = 0
    malformed: str = ""
    unsuitable: int = 0
    too_long: int = 0
    absent: Counter[str] = field(default_factory=Counter)
    queries: int = 0
    yes_no: int = 0
    prose: int = 0
    after_hashes: int = 0
    lists: int = 0
    not_posed: Counter[str] = field(default_factory=Counter)
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
        if self.malformed:
            yield f"the first row of unusable options: {self.malformed}"
        for column, number in self.not_posed.items():
            yield (
                f"{number} problems are without the text of their column {column!r}; where they are about it, write it "
                "into the problem, or name columns of text question, context and answer, which are read together"
            )
        if self.prose:
            yield (
                f"{self.prose} references are whole texts or objects, which no response repeats word for word; where "
                "the reward compares the two, map the column of the answers with columns.answer, or leave the rows out"
            )
        if self.after_hashes:
            yield f"{self.after_hashes} references are what stands behind #### in the answer, as in GSM8K"
        if self.lists:
            yield (
                f"{self.lists} references are lists, and a response has to give every element; where each is an answer "
                "of its own, keep one, or use r3env/Function-v0"
            )
        if self.queries and self.yes_no / self.queries >= _LEAST_YES_NO:
            share = f"{self.yes_no} of {self.queries} references ({self.yes_no / self.queries:.1%})"
            yield f"{share} are yes or no, true or false: a guess is paid half the time"


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Selection:
    """Which rows become queries, and how.

    Args:
        columns: The data's name for each field of ours (`problem`, `answer`, `uid`, `level`) that differs. A data
            set without `uid` gets uids from a hash of problem and answer, whatever the order of its rows. Any other
            name here, such as `hint`, is that of a column to keep in `Query.info`.
        limit: Only this many queries, from the start; None for all.
        max_prompt_length: Leaves out problems whose prompt is longer; None for no limit.
        prompt_length: What is compared with `max_prompt_length`; the default counts the problem's characters.
        optional: Columns to keep in `Query.info` too, under their own names, where a row has them and they are plain
            data; None for every column.
        whole_row: Whether a row may lack an answer, and two rows that differ only in `Query.info` are two queries.
        reference: Returns the reference that a query gets in place of the one in its row; it raises OptionsError where
            that can be no reference.

    Raises:
        ValueError: A limit is not positive.
    """

    columns: Mapping[str, str] | None = None
    limit: int | None = None
    max_prompt_length: int | None = None
    prompt_length: Callable[[Query], int] | None = None
    optional: Collection[str] | None = ()
    whole_row: bool = False
    reference: Callable[[Query], str] | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "max_prompt_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, it is {value}")

    def same(self, one: Query, other: Query) -> bool:
        """Return whether two rows of one uid are one query: they may differ in unused fields."""
        if self.whole_row or not self.optional:
            return one == other
        return replace(one, info=self._asked_for(one)) == replace(other, info=self._asked_for(other))

    def _asked_for(self, query: Query) -> dict[str, Any]:
        return {name: each for name, each in query.info.items() if name not in (self.optional or ())}

    def too_long(self, query: Query) -> bool:
        """Return whether the length limit leaves this query out."""
        if self.max_prompt_length is None:
            return False
        length = self.prompt_length(query) if self.prompt_length else len(query.problem)
        return length > self.max_prompt_length


def load_queries(
    source: str,
    *,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    revision: str | None = None,
    preset: str | None = None,
    max_prompt_length: int | None = None,
    prompt_length: Callable[[Query], int] | None = None,
) -> list[Query]:
    """Load the queries of a data set, without exact duplicates, into a list; `load_table` keeps them on disk.

    Args:
        source: A local .jsonl, .json, .parquet or .csv file, `embedded:train` (`heldout`, `variants`), `preset:NAME`,
            or a Hub id `owner/name[:configuration][@revision][#split]`.
        columns: See `Selection`.
        split: Split of a Hub data set; None for the one in `source`, else the preset's, else `train`.
        limit: See `Selection`.
        revision: Branch, tag or commit of a Hub data set.
        preset: Reads the rows by this preset, see `r3env.data.presets`; a Hub id that has one needs none.
        max_prompt_length: See `Selection`.
        prompt_length: See `Selection`.

    Raises:
        DataError: The data cannot be used; one line names the file, the row and the fix.
        ValueError: A limit is not positive.
    """
    selection = Selection(columns, limit, max_prompt_length, prompt_length)
    table, _ = load_table(parse_source(source, split=split, revision=revision, preset=preset), selection)
    return list(table.values())


def load_table(source: Source, selection: Selection | None = None) -> tuple[QueryTable, Counts]:
    """Load the queries of a data set onto disk, however many there are, and count what was left out.

    Raises:
        DataError: The data cannot be used; one line names the file, the row and the fix.
    """
    selection = selection or Selection()
    table, counts = QueryTable(), Counts()
    for number, query in _queries(source, selection, counts):
        if selection.too_long(query):
            counts.too_long += 1
            continue
        known = table.add(query, number)
        if known is not None and not selection.same(known[0], query):
            problem = f"uid {query.uid!r} already names other content in row {known[1]}"
            raise DataError.at(source.text, problem, "give each problem its own uid", row=number)
        counts.duplicates += known is not None
        counts.yes_no += known is None and is_yes_no(query.answer)
        counts.prose += known is None and not selection.whole_row and is_prose(query.answer)
        if len(table) == selection.limit:
            break
    counts.queries = len(table)
    if not counts.rows:
        raise DataError.at(source.text, "holds no rows", "name a data set with at least one problem")
    if not table:
        fix = "raise the limit or use other data"
        if counts.malformed:
            raise DataError(f"{counts.malformed}; of all rows: {counts}")
        if counts.absent and not counts.too_long:
            fix = "map the column of the answers with columns.answer, or use other data"
        raise DataError.at(source.text, f"leaves no queries: {counts}", fix)
    _logger.log(logging.WARNING if counts.incomplete else logging.INFO, "%s: %s", source.text, counts)
    for remark in counts.remarks():
        _logger.warning("%s: %s", source.text, remark)
    return table, counts


def _queries(source: Source, selection: Selection, counts: Counts) -> Iterator[tuple[int, Query]]:
    reader: RowReader | None = None
    for number, row in read_rows(source):
        counts.rows += 1
        if reader is None:
            found = recognize(row, selection.columns or {}, source.preset)
            counts.format = found.name
            reader = _reader(source, selection, found)
            counts.not_posed = reader.not_posed
        preset = reader.format.preset
        if preset and any(row.get(name, value) != value for name, value in preset.only.items()):
            counts.unsuitable += 1
            continue
        try:
            query = reader.query(number, row)
            if selection.reference:
                query = replace(query, answer=selection.reference(query))
        except AbsentError as error:
            counts.absent[error.value] += 1
        except (UnusableError, OptionsError) as error:
            if isinstance(error, OptionsError):
                error = MalformedError.at(source.text, *error.args[:2], row=number)
            # A published data set cannot be repaired by whoever trains on it; a file of one's own can.
            if preset is None:
                raise error from None
            counts.unusable += 1
            counts.malformed = counts.malformed or (str(error) if isinstance(error, MalformedError) else "")
        else:
            counts.after_hashes, counts.lists = reader.after_hashes, reader.lists  # here: a limit ends the loop
            yield number, query


def _reader(source: Source, selection: Selection, found: Format) -> RowReader:
    return RowReader(source, found, optional=selection.optional, whole_row=selection.whole_row)
