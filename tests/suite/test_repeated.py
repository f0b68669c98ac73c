"""Runs that were repeated on an idle machine, beside the ones that they repeat."""

import json

import pytest

from benchmarks.suite.records import read
from benchmarks.suite.repeated import pairs, same_curve, table

from .simulated import content

HALF = [(0, 0, 0.0, 0.1), (5, 1000, 5.0, 0.3), (10, 3000, 10.0, 0.5)]


def curve(points):
    return [{"step": s, "tokens": t, "cpu_s": c, "pass@1": p} for s, t, c, p in points]


@pytest.fixture
def files(tmp_path):
    """Two arms of the test, and the same again in half the time; GRPO has learned something else."""
    other = [*HALF[:-1], (10, 3000, 10.0, 0.6)]
    lines = {
        "test": [content(), content(arm="grpo")],
        "idle": [content(curve=curve(HALF)), content(arm="grpo", curve=curve(other))],
    }
    for name, of in lines.items():
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in of))
    return tmp_path / "test", tmp_path / "idle"


def test_a_repeated_run_stands_beside_the_first(files):
    registered, repeated = map(read, files)
    found = pairs(registered, repeated)
    assert [(first.cpu_s[-1], run.cpu_s[-1]) for first, run in found] == [(20, 10), (20, 10)]
    assert [same_curve(*pair) for pair in found] == [True, False]


def test_the_table_has_seconds_ratios_and_whether_the_runs_are_the_same(files):
    r3, grpo = table(*files).splitlines()[2:]
    assert r3 == "| r3 | 1 | 20.0 | 10.0 | 0.50 | 1.00 | 1.00 | 1 of 1 |"
    assert grpo == "| grpo | 1 | 20.0 | 10.0 | 0.50 | 1.00 | 1.00 | 0 of 1 |"


@pytest.mark.parametrize("changed", [{"commit": "2" * 40}, {"protocol": "2" * 64}, {"task": "another"}])
def test_what_repeats_no_run_is_refused(files, changed):
    test, idle = files
    idle.write_text(json.dumps(content(**changed)))
    with pytest.raises(ValueError, match="repeats no run of the same protocol and commit"):
        table(test, idle)
