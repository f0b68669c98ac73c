"""`python -m r3env.check --data FILE`: check that every reference answer is paid, as it is and written differently.

Exit codes: 0 all pass as they are, 1 some do not, 2 wrong input, 130 interrupted.
"""

import argparse
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from r3env.core import Query, Verdict
from r3env.data.loading import Selection, load_table
from r3env.data.other_forms import BARE, OTHER, UNIT, is_prose, other_forms
from r3env.data.query_table import QueryTable
from r3env.data.sources import for_command, parse_columns, parse_source
from r3env.grading import GraderError, grade
from r3env.printable import printable
from r3env.streams import call

_THREADS = 8
_IN_FLIGHT = 256
_FORMS_SHOWN = 3
_LONGEST_SHOWN = 120
_PROSE = "whole text"  # in place of a verdict's reason
_T = TypeVar("_T")


@dataclass(frozen=True)
class Checked:
    """A query, why nobody could be paid for it ("" if somebody could), and whether each other form is paid."""

    query: Query
    unpayable: str
    forms: Mapping[str, bool]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and print its report; the result is the exit code."""
    given = _parser().parse_args(arguments)
    try:
        _check_input(given)
        columns = parse_columns(given.column)
        source = parse_source(given.data, split=given.split, revision=given.revision, preset=given.preset)
        table, counts = load_table(source, Selection(columns, given.limit, given.max_prompt_length))
    except ValueError as error:
        print(printable(for_command(error)), file=sys.stderr)
        return 2
    print(printable(f"{given.data}: {counts}"))
    for remark in counts.remarks():
        print(printable(f"  {remark}"))
    try:
        failed = _report(table, given.timeout_s, given.show)
    except (GraderError, ValueError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    return 1 if failed else 0


def check_references(table: QueryTable, timeout_s: float) -> Iterator[Checked]:
    """Grade each reference answer against itself as it is and in other forms; in the order in which they are done."""

    def check(query: Query) -> Checked:
        verdict = _grade_as(query.answer, query, timeout_s)
        if not verdict.correct:
            return Checked(query, str(verdict.reason), {})
        if is_prose(query.answer):
            return Checked(query, _PROSE, {})
        forms = other_forms(query.answer)
        return Checked(query, "", {name: _grade_as(form, query, timeout_s).correct for name, form in forms.items()})

    return _for_each(table, check)


def _grade_as(answer: str, query: Query, timeout_s: float) -> Verdict:
    return grade(f"\\boxed{{{answer}}}", query.answer, timeout_s=timeout_s)


def _for_each(table: QueryTable, judge: Callable[[Query], _T]) -> Iterator[_T]:
    queries = iter(table.values())
    with ThreadPoolExecutor(_THREADS) as threads:  # waits: each answer has its timeout_s
        waiting: set[Future[_T]] = set()
        while True:
            waiting.update(threads.submit(judge, query) for query in islice(queries, _IN_FLIGHT - len(waiting)))
            if not waiting:
                return
            # waits: as above
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()  # waits: it is done


def _report(table: QueryTable, timeout_s: float, show: int) -> int:
    reasons: Counter[str] = Counter()
    graded: Counter[str] = Counter()
    refused: dict[str, list[Query]] = {}
    console = Console(stderr=True)
    bar = track(
        check_references(table, timeout_s),
        "Grading",
        len(table),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # it would leave an empty line in a log
    )
    for checked in bar:
        if checked.unpayable:
            reasons[checked.unpayable] += 1
            if reasons.total() <= show:
                print(f"  {checked.unpayable}: {_shown(checked.query)}")
        graded.update(checked.forms.keys())
        for name, paid in checked.forms.items():
            if not paid:
                refused.setdefault(name, []).append(checked.query)
    failed = reasons.total()
    if failed > show:
        print(f"  … and {failed - show} more")
    for name in (BARE, UNIT, OTHER):
        if graded[name]:
            print(form_line(name, graded[name], refused.get(name, []), show))
    if reasons:
        print(f"nobody could be paid for {failed}: {', '.join(f'{n} {why}' for why, n in reasons.most_common())}")
    print(f"{len(table) - failed} of {len(table)} reference answers pass their own grader, {failed} fail")
    return failed


def form_line(name: str, graded: int, refused: Sequence[Query], show: int) -> str:
    """Say how many references are paid in another form, and the first that are not."""
    line = f"written {name}: {graded - len(refused)} of {graded} are paid"
    first = [f"{query.uid} ({query.answer[:40]!r})" for query in refused[: min(show, _FORMS_SHOWN)]]
    return printable(f"{line}; not {', '.join(first)}{', …' if len(refused) > len(first) else ''}" if first else line)


def _shown(query: Query) -> str:
    problem, answer = " ".join(query.problem.split()), query.answer
    answer = answer if len(answer) <= _LONGEST_SHOWN else f"{answer[:_LONGEST_SHOWN]}…"
    return printable(f"uid {query.uid}: answer {answer!r}: {problem[:80]}")


def _check_input(given: argparse.Namespace) -> None:
    if not given.data.strip():
        raise ValueError("--data is empty; fix: name a file, preset:NAME or a Hub id")
    if not 0 < given.timeout_s < math.inf:
        raise ValueError(f"--timeout-s must be a positive number of seconds, it is {given.timeout_s:g}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m r3env.check", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="a file, preset:NAME or a Hub id, as in environment.data")
    parser.add_argument("--preset", help="read the rows with this preset: for a local copy of a known data set")
    parser.add_argument("--column", action="append", default=[], metavar="OURS=THEIRS", help="map a column")
    parser.add_argument("--split", help="split of a Hub data set")
    parser.add_argument("--revision", help="branch, tag or commit of a Hub data set")
    parser.add_argument("--limit", type=_positive, help="only this many queries")
    parser.add_argument("--max-prompt-length", type=_positive, help="leave out problems with more characters than this")
    parser.add_argument("--timeout-s", type=float, default=5.0, help="seconds that one answer may take (5)")
    parser.add_argument("--show", type=_count, default=20, help="failures to print (20)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, it is {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, it is {text!r}")
    return int(text)


if __name__ == "__main__":
    logging.getLogger("r3env").setLevel(logging.ERROR)  # the counts are in the report
    sys.exit(call(main))
