"""The measurement of `benchmarks.grading --cases` reads tests as math-verify writes them."""

from pathlib import Path

import pytest

from benchmarks.math_verify_cases import judge, share

TESTS = r"""
import pytest

@pytest.mark.parametrize(
    "gold, pred, expected",
    [
        ("$5$", r"It is $\boxed{5}$.", 1),
        ("$5$", r"It is $\boxed{5}$.", 1),  # twice
        ("$6$", r"It is $\boxed{5}$.", 0),
        ("$5$", r"$\frac{10}{2}$", 1),
        ("$11$", r"$\boxed{x = 7 = 11}$", 1),  # ours says no
        ("$4$", r"\boxed{5}", 1),  # math-verify does not do what its test expects
        ("$5$", "It is 5.", 1),  # no box and not a formula
        (f"{2 + 3}", r"\boxed{5}", 1),  # computed
    ],
)
def test_something(gold, pred, expected):
    assert compare_strings(gold, pred) == expected

@pytest.mark.parametrize("gold, pred, expected", [("$0.33$", r"\boxed{\frac13}", 1)])
def test_with_an_option(gold, pred, expected):
    assert compare_strings(gold, pred, precision=2) == expected
"""


def test_cases_that_count(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    judged = judge(tmp_path)
    assert share(judged, box_added=False) == (2, 3)
    assert share(judged, box_added=True) == (1, 1)
    assert [one.case.response for one in judged if not one.agrees] == [r"$\boxed{x = 7 = 11}$"]


def test_a_folder_without_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder tests of a checkout"):
        judge(tmp_path)
