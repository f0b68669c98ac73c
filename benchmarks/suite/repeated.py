"""Test runs that were repeated on an idle machine: `python -m benchmarks.suite.repeated`.

The test ran two at a time, beside other work. `docs/evidence/suite-idle.jsonl` has a sample of its runs again, made
one at a time at the test's commit with nothing beside them: what their CPU seconds are then, and whether they learned
the same.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.suite.records import RECORDS, REFERENCE, Run, read
from benchmarks.suite.table import markdown, ordered_arms

FILE = RECORDS.with_name("suite-idle.jsonl")


def pairs(registered: Sequence[Run], repeated: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return each repeated run behind the one that it repeats.

    Raises:
        ValueError: one repeats no run, or was made under another protocol or by other code.
    """
    by_name = {run.name: run for run in registered}
    found = []
    for run in repeated:
        first = by_name.get(run.name)
        if first is None or (first.protocol, first.commit) != (run.protocol, run.commit):
            raise ValueError(f"{run.name}: repeats no run of the same protocol and commit")
        found.append((first, run))
    return found


def same_curve(first: Run, second: Run) -> bool:
    """Whether two runs generated as many tokens and measured the same pass@1 at every evaluation."""
    return np.array_equal(first.tokens, second.tokens) and np.array_equal(first.pass_at_1, second.pass_at_1)


def table(file: Path = RECORDS, again: Path = FILE) -> str:
    """Return CPU seconds of each arm's runs in the test and on the idle machine, as Markdown."""
    found = pairs(read(file), read(again))
    total = {arm: _seconds(found, arm) for arm in ordered_arms([run for _, run in found])}
    grpo = total["grpo"]
    rows = []
    for arm, (test, idle) in total.items():
        own = [pair for pair in found if pair[1].arm == arm]
        same = sum(same_curve(*pair) for pair in own)
        numbers = [f"{test:.1f}", f"{idle:.1f}", f"{idle / test:.2f}", f"{test / grpo[0]:.2f}", f"{idle / grpo[1]:.2f}"]
        rows.append([arm, str(len(own)), *numbers, f"{same} of {len(own)}"])
    headings = ["arm", "runs", "in the test", "idle", "idle / test", "to GRPO, test", "to GRPO, idle", "same curve"]
    return markdown(headings, rows)


def _seconds(found: Sequence[tuple[Run, Run]], arm: str) -> tuple[float, float]:
    """Return mean CPU seconds of an arm's whole runs, in the test and repeated."""
    own = [(first.cpu_s[-1], run.cpu_s[-1]) for first, run in found if run.arm == arm]
    test, idle = np.mean(own, axis=0)
    return float(test), float(idle)


if __name__ == "__main__":
    print(f"Mean CPU seconds of a run; the arm that others are compared with is {REFERENCE}.\n\n{table()}", end="")
