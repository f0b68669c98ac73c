"""Tables that a benchmark prints, kept as benchmarks/results/NAME.json with command, commit, machine and date.

The pages show them (`make figures`). A record with `transcribed` was copied by hand from an earlier run's output; the
next run with --record replaces it.
"""

import json
import os
import shlex
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from algorithms.utils.files import write_json
from algorithms.utils.provenance import code_commit, machine

RECORDS = Path(__file__).parent / "results"
_FILES = "--json", "--record"
# Before this process adds to it.
_LOAD = os.getloadavg()[0]


@dataclass(frozen=True)
class Sheet:
    """A table as text.

    Args:
        title: may be empty.
        columns: their headings.
        rows: cells as long as `columns`.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, table: Table) -> "Sheet":
        """Return the text of a printed table."""
        columns = [list(map(str, column.cells)) for column in table.columns]
        headings = tuple(str(column.header) for column in table.columns)
        return cls(str(table.title or ""), headings, tuple(zip(*columns, strict=True)))


@dataclass(frozen=True)
class Record:
    """What a command measured, and where.

    Args:
        command: with its arguments.
        date: ISO 8601.
        machine: cores and processor.
        conditions: what else the machine did.
        commit: of the code; empty if unknown.
        transcribed: whether it was copied by hand.
        sheets: tables.
    """

    command: str
    date: str
    machine: str
    conditions: str
    commit: str
    transcribed: bool
    sheets: tuple[Sheet, ...]


def benchmark_parser(description: str | None, **options: Any) -> ArgumentParser:
    """Return a parser with the options that `show` reads, and a benchmark's own.

    Args:
        description: the module's text.
        options: each one's default, or a pair of default and help. False makes a flag; else the default has the type.
    """
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    for name, given in options.items():
        default, text = given if isinstance(given, tuple) else (given, None)
        one = default[0] if isinstance(default, list) else default
        kind: dict[str, Any] = {"default": default, "type": type(one)}
        kind |= {"nargs": "+"} if isinstance(default, list) else {}
        kind = {"action": "store_true"} if default is False else kind
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **kind)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    kept = "keep the tables with commit, machine and date: benchmarks/results/NAME.json"
    parser.add_argument("--record", type=Path, metavar="FILE", help=kept)
    return parser


def empty_table(title: str, *columns: str, left: int = 1) -> Table:
    """Return a table without rows; its first `left` columns are text, the others numbers."""
    headers = (Column(name, justify="left" if place < left else "right") for place, name in enumerate(columns))
    return Table(*headers, title=title, title_justify="left")


def show(
    tables: Sequence[Table], options: Namespace, figures: Any, *, width: int = 120, kept: Sequence[Table] = ()
) -> None:
    """Print tables, and write the files that the options name.

    Args:
        tables: to print.
        options: parsed by `benchmark_parser`.
        figures: every number, as JSON takes it.
        width: of the output.
        kept: tables to keep instead of those that are printed.
    """
    for table in tables:
        Console(width=width).print(table)
    if options.json:
        write_figures(options.json, figures)
    if options.record:
        found = Record(
            command=_command(),
            date=f"{date.today():%Y-%m-%d}",
            machine=machine(),
            conditions=f"load {_LOAD:.1f} before",
            commit=code_commit() or "",
            transcribed=False,
            sheets=tuple(map(Sheet.of, kept or tables)),
        )
        write_figures(options.record, asdict(found))


def write_figures(file: Path, figures: Any) -> None:
    """Write a file of figures, and the folder that it is in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, figures)


def read(name: str) -> Record:
    """Return the record of `benchmarks/results/NAME.json`."""
    found = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    sheets = tuple(
        Sheet(one["title"], tuple(one["columns"]), tuple(map(tuple, one["rows"]))) for one in found.pop("sheets")
    )
    return Record(**found, sheets=sheets)


def given() -> str:
    """Return this process's arguments, without the files that it writes."""
    words = [word for word in sys.argv[1:] if not word.startswith(tuple(f"{option}=" for option in _FILES))]
    for option in set(_FILES) & set(words):
        at = words.index(option)
        del words[at : at + 2]
    return shlex.join(words)


def _command() -> str:
    spec = sys.modules["__main__"].__spec__
    module = (spec.name if spec else "unknown").removesuffix(".__main__")
    return f"python -m {module} {given()}".rstrip()
