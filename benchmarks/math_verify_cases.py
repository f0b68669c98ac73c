"""The cases of math-verify's own tests, read from a checkout of it, and whether the grader agrees with them.

A case counts if its prediction has a box, or is a formula and nothing else, which then gets one; if its test asks for
no option that the grader does not have, such as fewer decimals; and if math-verify itself gives the verdict that its
test expects for that response. The same pair counts once.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from r3env.grading import grade

_FORMULA = re.compile(r"\$\$(.+)\$\$|\$([^$]+)\$|\\\[(.+)\\\]|\\\((.+)\\\)", re.DOTALL)
_COLUMNS = {"gold", "pred"}


@dataclass(frozen=True)
class Case:
    """A case: what the test expects of `response` for `gold`, and whether the box was put around it here."""

    test: str
    gold: str
    response: str
    expected: bool
    box_added: bool


@dataclass(frozen=True)
class Judged:
    """A case that counts, and whether the grader agrees."""

    case: Case
    agrees: bool


def judge(folder: Path) -> list[Judged]:
    """Grade every case that counts.

    Args:
        folder: `tests` of math-verify.

    Raises:
        ValueError: The folder has no such cases.
    """
    pairs = {(case.gold, case.response): case for case in _cases(folder)}
    judged = [
        Judged(case, grade(case.response, case.gold).correct == case.expected)
        for case in pairs.values()
        if _by_math_verify(case) == case.expected
    ]
    if not judged:
        raise ValueError(f"{folder} has no cases of math-verify; it should be the folder tests of a checkout of it")
    return judged


def _cases(folder: Path) -> Iterator[Case]:
    for file in sorted(folder.glob("test_*.py")):
        for test in ast.parse(file.read_text()).body:
            if isinstance(test, ast.FunctionDef):
                for row in _rows(test):
                    case = _case(f"{file.stem}.{test.name}", row)
                    if case:
                        yield case


def _rows(test: ast.FunctionDef) -> Iterator[dict[str, object]]:
    """Yield the parameters of a test, each row by the names of its columns, without computed rows."""
    options = {keyword.arg for call in ast.walk(test) if isinstance(call, ast.Call) for keyword in call.keywords}
    if options & {"precision", "strict", "allow_set_relation_comp"}:
        return
    for decorator in test.decorator_list:
        if not (isinstance(decorator, ast.Call) and len(decorator.args) == 2):
            continue
        names, rows = decorator.args
        if not (isinstance(names, ast.Constant) and isinstance(names.value, str) and isinstance(rows, ast.List)):
            continue
        columns = [name.strip() for name in names.value.split(",")]
        for row in rows.elts if _COLUMNS <= set(columns) else ():
            try:
                yield dict(zip(columns, ast.literal_eval(row), strict=True))
            except ValueError:
                continue


def _case(test: str, row: dict[str, object]) -> Case | None:
    gold, prediction = str(row["gold"]), str(row["pred"])
    expected = bool(row.get("expected", row.get("result")))
    if "boxed{" in prediction:
        return Case(test, gold, prediction, expected, False)
    formula = _FORMULA.fullmatch(prediction.strip())
    inside = next(filter(None, formula.groups()), None) if formula else None
    return Case(test, gold, f"\\boxed{{{inside}}}", expected, True) if inside else None


def _by_math_verify(case: Case) -> bool:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    return bool(verify(parse(case.gold, targets), parse(case.response, targets), float_rounding=6))


def share(judged: list[Judged], *, box_added: bool) -> tuple[int, int]:
    """Count the cases of a kind that the grader agrees with, and all of them."""
    kind = [one for one in judged if one.case.box_added is box_added]
    return sum(one.agrees for one in kind), len(kind)
