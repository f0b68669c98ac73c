"""Faults put into the product: where they are put, which tests run, and what is said of each."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import mutations
from benchmarks.mutations import Coverage, places
from benchmarks.mutations import judge as judged

PRODUCT = '''\
"""A text with é before the code."""


def is_small(number: "int | 1" = 2, *, strict: bool = False) -> bool:
    """Compare."""
    return not (number >= 10) and f"{number + 1}" != "é" or strict
'''
TEST = """\
import product

def test_small_numbers():
    assert product.is_small(5) and not product.is_small(12)

def test_nothing():
    assert product.is_small
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A module and its tests, in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("product.py").write_text(PRODUCT)
    Path("test_product.py").write_text(TEST)
    Path("test_other.py").write_text("def test_other():\n    pass\n")
    Path("pytest.ini").write_text("[pytest]\npythonpath = .\n")


def test_each_place_is_replaced_where_it_stands(project):
    content = Path("product.py").read_bytes()
    found = {}
    for place in places(Path("product.py")):
        assert content[place.start : place.end].decode() == place.before
        found[place.before] = place.after
    assert found == {
        "2": "3",
        "False": "True",
        PRODUCT.splitlines()[-1].strip().removeprefix("return "): (
            "((not number >= 10 and f'{number + 1}' != 'é') and (strict))"
        ),
        """not (number >= 10) and f"{number + 1}" != "é\"""": "((not number >= 10) or (f'{number + 1}' != 'é'))",
        "not (number >= 10)": "(number >= 10)",
        "number >= 10": "((number) > (10))",
        "10": "11",
        """f"{number + 1}" != "é\"""": "((f'{number + 1}') == ('é'))",
    }


def test_a_change_is_noticed_missed_unknown_or_untested(project):
    by_text = {place.before: place for place in places(Path("product.py"))}
    both = ["test_other.py::test_other", "test_product.py::test_nothing", "test_product.py::test_small_numbers"]
    assert judged(by_text["not (number >= 10)"], both, 100) == "noticed"
    assert judged(by_text["number >= 10"], both, 100) == "missed"
    assert judged(by_text["number >= 10"], [], 100) == "untested"
    assert judged(by_text["number >= 10"], both, 0.01) == "unknown"
    Path("test_product.py").write_text(f"{TEST}\ndef test_broken():\n    assert False\n")
    assert judged(by_text["2"], ["test_product.py::test_broken"], 100) == "unknown", "it fails without the change, too"
    assert Path("product.py").read_text() == PRODUCT


@pytest.mark.parametrize(("without", "verdict"), [(0, "noticed"), (None, "unknown")])
def test_a_change_that_makes_tests_hang_is_noticed(without, verdict, project, monkeypatch):
    codes = iter([None, without])
    monkeypatch.setattr(mutations, "_exit_code", lambda command, limit_s: next(codes))
    place, *_ = places(Path("product.py"))
    assert judged(place, ["test_product.py::test_nothing"], 100) == verdict


def test_the_most_particular_test_of_a_line_comes_first(project):
    with sqlite3.connect("coverage.db") as database:
        database.executescript(
            "create table file (id, path); create table context (id, context);"
            "create table line_bits (file_id, context_id, numbits);"
        )
        files = [(1, str(Path("product.py").resolve())), (2, "/elsewhere.py")]
        database.executemany("insert into file values (?, ?)", files)
        database.executemany(
            "insert into context values (?, ?)", [(1, ""), (2, "a|run"), (3, "b|run"), (4, "c|setup"), (5, "c|run")]
        )
        # Lines 4 and 6 of the product, of another file, and a later line alone.
        lines = [
            (1, 1, b"\x50"),
            (1, 2, b"\x50"),
            (2, 2, b"\x50"),
            (1, 3, b"\x40"),
            (1, 4, b"\x10"),
            (2, 5, b"\x40\x01"),
        ]
        database.executemany("insert into line_bits values (?, ?, ?)", lines)
    coverage = Coverage(Path("coverage.db"))
    by_text = {place.before: place for place in places(Path("product.py"))}
    assert coverage.tests(by_text["10"]) == ["b", "a"]
    assert by_text["2"].at_import and coverage.tests(by_text["2"]) == ["b", "a", "c"], "a default: the file's tests"
    assert coverage.tests(replace(by_text["2"], at_import=False)) == ["a", "c"]
    elsewhere = replace(by_text["10"], line=5)
    assert coverage.tests(elsewhere) == ["b", "a", "c"], "no test executes the line: those of the file"
