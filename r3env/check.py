"""`python -m r3env.check --data FILE`: check that every reference answer passes its own grader.

Exit codes: 0 all do, 1 some do not, 2 wrong input, 130 interrupted.
"""

import argparse
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice

from rich.console import Console
from rich.progress import track

from r3env.core import Query, Verdict
from r3env.data.loading import Selection, load_table
from r3env.data.query_table import QueryTable
from r3env.data.sources import for_command, parse_columns, parse_source
from r3env.grading import GraderError, grade

_THREADS = 8
_IN_FLIGHT = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and print its report; the result is the exit code."""
    given = _parser().parse_args(arguments)
    try:
        _check_input(given)
        columns = parse_columns(given.column)
        source = parse_source(given.data, split=given.split, revision=given.revision, preset=given.preset)
        table, counts = load_table(source, Selection(columns, given.limit, given.max_prompt_length))
    except ValueError as error:
        print(for_command(error), file=sys.stderr)
        return 2
    print(f"{given.data}: {counts}")
    try:
        failed = _report(table, given.timeout_s, given.show)
    except (GraderError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if failed else 0


def grade_references(table: QueryTable, timeout_s: float) -> Iterator[tuple[Query, Verdict]]:
    """Grade each reference answer, put in a box, against itself; in the order in which they are done."""

    def grade_one(query: Query) -> tuple[Query, Verdict]:
        return query, grade(f"\\boxed{{{query.answer}}}", query.answer, timeout_s=timeout_s)

    queries = iter(table.values())
    with ThreadPoolExecutor(_THREADS) as threads:
        waiting: set[Future[tuple[Query, Verdict]]] = set()
        while True:
            waiting.update(threads.submit(grade_one, query) for query in islice(queries, _IN_FLIGHT - len(waiting)))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def _report(table: QueryTable, timeout_s: float, show: int) -> int:
    failed = 0
    console = Console(stderr=True)
    bar = track(
        grade_references(table, timeout_s),
        "Grading",
        len(table),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # it would leave an empty line in a log
    )
    for query, verdict in bar:
        if verdict.correct:
            continue
        failed += 1
        if failed <= show:
            problem = " ".join(query.problem.split())
            print(f"  {verdict.reason}: uid {query.uid}: answer {query.answer!r}: {problem[:80]}")
    if failed > show:
        print(f"  … and {failed - show} more")
    passed = len(table) - failed
    print(f"{passed} of {len(table)} reference answers pass their own grader, {failed} fail")
    return failed


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
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
