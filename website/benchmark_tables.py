"""Figures of what benchmarks measured, from the records of benchmarks/results."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from benchmarks.record import RECORDS, Record, Sheet, read

# Figure → its records; and the columns to show, of the tables that have them, of records that a command kept. Without
# columns it is everything.
STEADY = ("engines", "driver CPU, share of the time")
STEP = (
    "scenario",
    "collecting, CPU µs per response",
    "after that, CPU µs per response",
    "engines idle",
    "slots in use",
)
MEMORY = ("scenario", "responses", "own memory, GB", "object store, GB", "both, GB", "kB per response")
SCHEDULING = ("scenario", "step, s", "engines idle", "stolen", "re-queued", "restarts")
HELD = ("learners", "hold", "MiB held each", "MiB at the peak")
RATIO = ("clock", "ratio", "10th..90th percentile of pairs", "at equal work")
AHEAD = ("scenario", "step, s", "engines idle", "slots in use")
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vs_trl": (("vs_trl", "vs_trl-wide", "vs_trl-engines"), ()),
    "vs_trl-laptop": (("vs_trl-laptop",), ()),
    "overhead": (("overhead",), ()),
    "overhead-regimes": (("overhead-truncated", "overhead-incorrect"), RATIO),
    "rollout": (("rollout-wide", "rollout-tiny-before", "rollout-tiny"), ()),
    "scale-steady": (("scale-steady-64", "scale-steady-256"), STEADY),
    "scale-step": (("scale-step",), (*STEP, "own memory, GB", "shared with the object store, GB")),
    "scale-memory": (("scale-memory-before", "scale-memory-16", "scale-memory-64"), MEMORY),
    "scale-scheduling": (("scale-scheduling", "scale-learner"), SCHEDULING),
    "scale-asynchronous": (("scale-asynchronous",), AHEAD),
    "processes": (("processes", "processes-threads"), ()),
    "packing": (("packing", "packing-budget", "packing-long"), ()),
    "packing-prompts": (("packing-prompts",), ()),
    "learner": (("learner", "learner-8192"), ()),
    "weights": (("weights",), ()),
    "token_data": (("token_data",), ()),
    "sharding": (("sharding",), HELD),
    "recovery": (
        ("recovery-before", "recovery", "recovery-update", "recovery-spare", "recovery-vllm", "recovery-vllm-spare"),
        (),
    ),
    "history": (("history",), ()),
    "architectures": (("architectures",), ()),
}


@dataclass(frozen=True)
class Claim:
    """A row of the summary, from benchmarks/results/claims.yaml.

    Args:
        question: Markdown.
        before: the same figure of an earlier version, as it was written down then.
        record: where the present one is.
        row: beginning of the row's first cell.
        column: its heading.
        form: of the number, which is a fraction where the cell is in percent.
        beside: what it is compared with.
        at_least: goal, where more is better.
        at_most: goal, where less is.
    """

    question: str
    before: str
    record: str
    row: str
    column: str
    form: str
    beside: str
    at_least: float | None = None
    at_most: float | None = None

    def goal(self, value: float) -> str:
        """Return the goal, and whether the number misses it."""
        if self.at_least is not None:
            return self._said(self.at_least, missed=value < self.at_least)
        return "–" if self.at_most is None else self._said(self.at_most, missed=value > self.at_most)

    def _said(self, goal: float, *, missed: bool) -> str:
        form = re.sub(r"\{.*\}", "{:.0%}" if "%}" in self.form else "{:g}", self.form).replace(" faster", "")
        return _percent(form.format(goal)) + ", **missed**" * missed


def summary() -> str:
    """Return the summary: every claim beside its goal and its command."""
    lines = ["| question | before | now | goal | beside | `python -m benchmarks.` |", "|---|---|---|---|---|---|"]
    for claim in (Claim(**row) for row in yaml.safe_load((RECORDS / "claims.yaml").read_text(encoding="utf-8"))):
        record = read(claim.record)
        value = number(record, claim.row, claim.column)
        now, command = _percent(claim.form.format(value)), record.command.removeprefix("python -m benchmarks.")
        cells = (claim.question, claim.before, now, claim.goal(value), claim.beside, f"`{command}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def number(record: Record, row: str, column: str) -> float:
    """Return the number that begins a cell: of the first row whose first cell begins so, in the first table with it.

    Raises:
        ValueError: there is no such cell, or it begins otherwise.
    """
    for sheet in record.sheets:
        for cells in sheet.rows:
            if column in sheet.columns and cells[0].startswith(row):
                cell = cells[sheet.columns.index(column)]
                if found := re.match(r"-?[\d,]*\.?\d+", cell):
                    return float(found[0].replace(",", "")) / (100 if re.match(r"\s*%", cell[found.end() :]) else 1)
    raise ValueError(f"{record.command}: has no number at {row!r}, {column!r}")


def tables(figure: str) -> str:
    """Return a figure's tables and their origin; those of several records with the same columns are one."""
    names, columns = TABLES[figure]
    parts: dict[tuple[tuple[str, ...], int], tuple[Sheet, list[tuple[int, Record]]]] = {}
    records = [read(name) for name in names]
    for record in records:
        seen: Counter[tuple[str, ...]] = Counter()
        for shown in record.sheets if record.transcribed else selected(record, columns):
            key = shown.columns, seen[shown.columns]
            seen[shown.columns] += 1
            above, by = parts.get(key, (Sheet(shown.title, shown.columns, ()), []))
            merged = Sheet(above.title, above.columns, above.rows + shown.rows)
            parts[key] = merged, [*by, (len(shown.rows), record)]
    if len(records) == 1:
        return "\n\n".join([*(markdown(sheet) for sheet, _ in parts.values()), _said(records[0])])
    return "\n\n".join(f"{markdown(sheet)}\n\n{_origin(by)}" for sheet, by in parts.values())


def selected(record: Record, columns: Sequence[str]) -> list[Sheet]:
    """Return some columns of the tables that have them; without any named, all tables as they are.

    Raises:
        ValueError: no table has them.
    """
    found = [sheet for sheet in record.sheets if set(columns) <= set(sheet.columns)]
    if not found:
        raise ValueError(f"{record.command}: has no table with the columns {', '.join(columns)}")
    return [_with(sheet, columns) for sheet in found] if columns else found


def _with(sheet: Sheet, columns: Sequence[str]) -> Sheet:
    places = [sheet.columns.index(column) for column in columns]
    return Sheet(sheet.title, tuple(columns), tuple(tuple(row[place] for place in places) for row in sheet.rows))


def markdown(sheet: Sheet) -> str:
    """Return a table as Markdown, its title as a line above."""
    rows = [sheet.columns, ["---", *["---:"] * (len(sheet.columns) - 1)], *sheet.rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{sheet.title[0].upper()}{sheet.title[1:]}:\n\n{table}" if sheet.title else table


def _origin(by: Sequence[tuple[int, Record]]) -> str:
    """Say which command made which rows, where and when; what all have in common once."""
    if len(by) == 1:
        return _said(by[0][1])
    common = len({_where(record) for _, record in by}) == 1
    lines, first = [], 1
    for count, record in by:
        rows = f"Row {first}" if count == 1 else f"Rows {first} to {first + count - 1}"
        lines.append(f"- {rows}: `{record.command}`." if common else f"- {rows}: {_said(record)}")
        first += count
    return "\n".join(lines) + (f"\n\nAll rows: {_where(by[0][1])}." if common else "")


def _said(record: Record) -> str:
    return f"`{record.command}`: {_where(record)}."


def _where(record: Record) -> str:
    commit, dirty, _ = record.commit.partition("-dirty")
    where = ", ".join(part for part in (record.machine, record.conditions, record.date) if part)
    return f"{where}; {'copied by hand in commit' if record.transcribed else 'commit'} {commit[:7]}{dirty}"


def _percent(text: str) -> str:
    return text.replace("%", " %")
