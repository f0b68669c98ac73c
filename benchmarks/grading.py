"""Answers graded per second on one core, beside bare math-verify in the same run, and where the two disagree.

    python -m benchmarks.grading [--json FILE] [--disagreements]

Ordinary answers are those of a training step: groups of responses to one problem each, most of which give one of a few
final answers. "Repeated" is a later pass over the same answers, with every parse in the caches; "new" is a pass over
answers never seen before. `--disagreements` prints the corpus cases that bare math-verify misjudges instead.
"""

import contextlib
import logging
import operator
import os
import random
import time
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks.record import benchmark_parser, show
from r3env.child_processes.subprocess_scorer import SubprocessScorer
from r3env.core import Reason
from r3env.grading import close, grade, statistics

Pair = tuple[str, str]
_GROUPS, _GROUP_SIZE = 64, 16
_REASONING = "We set up the equation, simplify both sides and check the result. " * 20


def main() -> None:
    """Measure, print a table, and write the figures where a file is named."""
    parser = benchmark_parser(
        __doc__,
        disagreements=(False, "print where bare math-verify differs from the corpus"),
    )
    arguments = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    console = Console()
    if arguments.disagreements:
        _print_disagreements(console)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the grader processes inherit it: one core in all
    figures = measure()
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}")
    show([table], arguments, figures)


def measure() -> dict[str, float]:
    """Measure rates in answers per second, their ratios to bare math-verify, and the overhead per answer in ms."""
    grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")  # the start of a grader is not of interest
    ordinary, fresh, hard = _ordinary(seed=1), _ordinary(seed=2), _hard()
    _rate(_ours, ordinary)
    repeated, bare_repeated = _rate(_ours, ordinary), _rate(_bare, ordinary[: len(ordinary) // 4])
    new, bare_new = _rate(_ours, fresh), _rate(_bare, fresh[: len(fresh) // 4])
    # Every answer takes the parser here: what is left of the difference is the way to the process and back.
    child, bare_child = _rate(_ours, hard), _rate(_bare, hard)
    close()
    return {
        "ordinary_repeated_per_s": repeated,
        "ordinary_repeated_ratio": repeated / bare_repeated,
        "ordinary_new_per_s": new,
        "ordinary_new_ratio": new / bare_new,
        "parsed_new_per_s": child,
        "parsed_new_ratio": child / bare_child,
        "parsed_overhead_ms": 1000 / child - 1000 / bare_child,
        "bare_math_verify_per_s": bare_repeated,
        "round_trip_ms": 1000 / _rate(_round_trip, hard[:1] * 2000),
        **_scorers(),
    }


def _scorers() -> dict[str, float]:
    """Measure what a scorer of reasoning-gym pays for its process: a fork that it keeps, and one for each answer."""
    with contextlib.closing(SubprocessScorer(size=1)) as scorer:

        def same(answer: str, reference: str, keep: bool) -> bool:
            made_from = (operator.eq, reference)
            return scorer.call("functools:partial", made_from, answer, timeout_s=60.0, keep=keep) == 1.0

        pairs = [(f"{number}", "17") for number in range(300)]
        same("1", "17", True)  # the start of the process is not of interest
        kept, own = (1000 / _rate(partial(same, keep=keep), pairs) for keep in (True, False))
    return {"scorer_kept_fork_ms": kept, "scorer_own_fork_ms": own, "scorer_own_fork_ratio": own / kept}


def _ordinary(seed: int) -> list[Pair]:
    """Return responses with golds: mostly numbers, some fractions and expressions, a few of which need the parser."""
    chance = random.Random(seed)
    pairs = []
    for _ in range(_GROUPS):
        number, part = chance.randint(2, 10**6), chance.randint(2, 99)
        gold, others = chance.choices(
            [
                (
                    f"{number}",
                    [f"{number:,}", f"x = {number}", f"{number + 1}", f"{number}\\text{{ cm}}", f"{number}.0"],
                ),
                (f"\\frac{{{part}}}{{101}}", [f"{part}/101", f"\\dfrac{{{part + 1}}}{{101}}", f"{part / 101:.6f}"]),
                (f"{part}\\sqrt{{3}}", [f"\\sqrt{{{3 * part * part}}}", f"{part + 1}\\sqrt{{3}}"]),
                (f"({part},{number})", [f"\\left({part}, {number}\\right)", f"({number},{part})"]),
            ],
            weights=[75, 12, 7, 6],
        )[0]
        answers = chance.choices([gold, *others], weights=[4] + [1] * len(others), k=_GROUP_SIZE)
        pairs += [(f"{_REASONING}\\boxed{{{answer}}}", gold) for answer in answers]
    return pairs


def _hard() -> list[Pair]:
    return [(f"{_REASONING}\\boxed{{\\sqrt{{{n * n * 5}}}}}", f"{n}\\sqrt{{5}}") for n in range(2, 202)]


def _rate(judge: Callable[[str, str], bool], pairs: list[Pair]) -> float:
    started = time.perf_counter()
    for response, gold in pairs:
        judge(response, gold)
    return len(pairs) / (time.perf_counter() - started)


def _ours(response: str, gold: str) -> bool:
    return grade(response, gold).correct


def _bare(response: str, gold: str) -> bool:
    from math_verify import parse, verify

    return bool(verify(_bare_gold(gold), parse(response)))


def _bare_gold(gold: str) -> list[object]:
    from math_verify import parse

    return list(parse(gold if "$" in gold or "\\boxed" in gold else f"${gold}$"))


def _round_trip(_: str, __: str) -> bool:
    from r3env.grading.grader import compare_in_grader

    return compare_in_grader("1", "1", 5.0)[0]  # plain to see there: nothing but the way is measured


def _print_disagreements(console: Console) -> None:
    from tests.r3env.grading_corpus import cases

    table = Table("family", "response", "gold", "right", "math-verify", "r3env")
    total, wrong, ours_wrong = 0, 0, 0
    for family, response, gold, reason in cases():
        right = reason is Reason.EQUAL
        bare, ours = _bare(response, gold), _ours(response, gold)
        total, wrong, ours_wrong = total + 1, wrong + (bare != right), ours_wrong + (ours != right)
        if right != bare or right != ours:
            table.add_row(family, response[-70:], gold, str(right), str(bare), str(ours))
    console.print(table, markup=False)
    console.print(f"{total} cases; math-verify alone is wrong in {wrong}, r3env in {ours_wrong}; {statistics()}")


if __name__ == "__main__":
    main()
