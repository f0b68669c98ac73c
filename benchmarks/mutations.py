"""How many faults the tests notice: places of the product are changed one by one, drawn at random by a seed.

    pip install pytest-cov
    python -m benchmarks.mutations --seed 7 --files > drawn.ini   # so that other files are not traced
    pytest -n2 -m "not real and not vllm and not slow" --cov --cov-config=drawn.ini --cov-context=test --cov-report=
    python -m benchmarks.mutations .coverage --seed 7 --out mutations.jsonl   # edits this checkout: use one of its own

A place is an operator, a condition or a constant. Of each change those tests run that execute its line, the most
particular first, until one fails or the time is over; of a line that runs at import, or in no test's process, those
that execute a line of its file. A change is `noticed` if a test fails, or hangs, that passes without it, `missed` if
all pass, `unknown` if the time was over first, `untested` if there are no such tests. Some changes change nothing that
can be seen, so not all can be noticed.
"""

import argparse
import ast
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.And: "or",
    ast.Or: "and",
}


@dataclass(frozen=True)
class Place:
    """A change of the product.

    Args:
        file: below the project's folder.
        line: from 1.
        before: the expression.
        after: what it becomes.
        start: its first byte in the file.
        end: behind its last one.
        at_import: whether it runs when the file is imported.
    """

    file: str
    line: int
    before: str
    after: str
    start: int
    end: int
    at_import: bool


def places(file: Path) -> Iterator[Place]:
    """Find what can be changed in a file, annotations and f-strings apart."""
    content = file.read_bytes()
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(content)
    # Annotations do nothing, and before Python 3.12 the parts of an f-string have no place.
    passed_over = {
        id(part)
        for node in ast.walk(tree)
        for whole in (
            getattr(node, "annotation", None),
            getattr(node, "returns", None),
            node if isinstance(node, ast.JoinedStr) else None,
        )
        if whole is not None
        for part in ast.walk(whole)
    }

    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    in_functions = {id(part) for body in bodies for statement in body for part in ast.walk(statement)}

    text = ast.unparse
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or id(node) in passed_over:
            continue
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in OPERATORS:
                after = f"(({text(left)}) {OPERATORS[type(operator)]} ({text(right)}))"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
                after = f"(({text(left)}) {OPERATORS[type(operator)]} ({text(right)}))"
            case ast.BoolOp(op=operator, values=values):
                after = f"({f' {OPERATORS[type(operator)]} '.join(f'({text(value)})' for value in values)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                after = f"({text(operand)})"
            case ast.Constant(value=bool(value)):
                after = str(not value)
            case ast.Constant(value=int(value) | float(value)):
                after = str(value + 1)
            case _:
                continue
        start, end = (
            starts[line - 1] + column
            for line, column in ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        )
        yield Place(
            str(file), node.lineno, content[start:end].decode(), after, start, end, id(node) not in in_functions
        )


class Coverage:
    """Which tests execute a line, from a file of coverage.py.

    Args:
        file: an SQLite database, https://coverage.readthedocs.io/en/latest/dbschema.html.
    """

    def __init__(self, file: Path) -> None:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
            rows = connection.execute(
                "select path, context, numbits from line_bits join context on context.id = context_id "
                "join file on file.id = file_id where context != '' order by context_id"
            ).fetchall()
        # Behind `|` stands whether the test itself ran or its fixtures.
        self._rows = [(Path(path), context.rpartition("|")[0], bits) for path, context, bits in rows]
        self._files = Counter(test for _, test, _ in self._rows)
        self._order = {test: number for number, test in enumerate(self._files)}

    def tests(self, place: Place) -> list[str]:
        """Return the tests that execute a line, or its file: those of a module together, the most particular first."""
        path, (byte, bit) = Path(place.file).resolve(), divmod(place.line, 8)
        rows = [(test, bits) for file, test, bits in self._rows if file == path]
        found = {test for test, bits in rows if len(bits) > byte and bits[byte] >> bit & 1 and not place.at_import}
        found = found or {test for test, _ in rows}
        # A module's fixtures are made once, and its tests may lean on their order.
        fewest: dict[str, int] = {}
        for test in found:
            module = test.partition("::")[0]
            fewest[module] = min(self._files[test], fewest.get(module, self._files[test]))
        return sorted(
            found, key=lambda test: (fewest[test.partition("::")[0]], test.partition("::")[0], self._order[test])
        )


def judge(place: Place, tests: list[str], limit_s: float) -> str:
    """Run tests with a place changed, and change it back."""
    if not tests:
        return "untested"
    file = Path(place.file)
    whole = file.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "tests.txt"
        names.write_text("\n".join(tests), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-o", f"cache_dir={folder}/cache"]
        file.write_bytes(whole[: place.start] + place.after.encode() + whole[place.end :])
        try:
            failed = _exit_code([*command, f"@{names}"], limit_s)
        finally:
            file.write_bytes(whole)
        if failed == 0:
            return "missed"
        # The failed test again; where nothing could be imported, the list of tests; where they hung, all of them.
        again = [f"@{names}", *(["--collect-only"] if failed is not None else [])]
        if failed == 1:
            again = list(json.loads((Path(folder) / "cache/v/cache/lastfailed").read_text("utf-8")))
        return "unknown" if _exit_code([*command, *again], limit_s) != 0 else "noticed"


def _exit_code(command: list[str], limit_s: float) -> int | None:
    """Return a command's exit code; None, and end it with what it started, where the time is over first."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def main() -> None:
    """Draw places, judge each, print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "coverage", nargs="?", type=Path, default=Path(".coverage"), help="with a context for each test"
    )
    parser.add_argument(
        "--files", action="store_true", help="print coverage.py's settings for the drawn files, and end"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40, help="changes to judge; the same for --files")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="for the tests of a change")
    parser.add_argument(
        "--out", type=Path, default=Path("mutations.jsonl"), help="results; those in it are not repeated"
    )
    given = parser.parse_args()
    files = sorted(file for folder in ("algorithms", "r3env") for file in Path(folder).rglob("*.py"))
    drawn = random.Random(given.seed).sample([place for file in files for place in places(file)], given.count)
    if given.files:
        print("[run]\ninclude =", *sorted({place.file for place in drawn}), sep="\n    ")
        return
    coverage = Coverage(given.coverage)
    done = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()] if given.out.exists() else []
    counts = Counter(each["verdict"] for each in done)
    for number, place in enumerate(drawn[len(done) :], start=len(done) + 1):
        tests = coverage.tests(place)
        verdict = judge(place, tests, given.limit)
        counts[verdict] += 1
        with given.out.open("a", encoding="utf-8") as out:
            out.write(f"{json.dumps({**asdict(place), 'tests': len(tests), 'verdict': verdict})}\n")
        print(
            f"{number}/{given.count} {place.file}:{place.line} {place.before!r} → {place.after!r}: {verdict}",
            flush=True,
        )
    print(", ".join(f"{verdict} {count}" for verdict, count in counts.most_common()))


if __name__ == "__main__":
    main()
