"""A benchmark's record holds what was printed, and a page shows it with its origin."""

from types import SimpleNamespace

import pytest
from rich.table import Table

from benchmarks import record
from benchmarks.record import Record, Sheet, benchmark_parser, read, show
from website import benchmark_tables
from website.benchmark_tables import Claim, number, selected, tables


def printed(*rows):
    table = Table("case", "ratio", title="speed")
    for row in rows:
        table.add_row(*row)
    return table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RECORDS", tmp_path)
    return tmp_path


def kept(folder, monkeypatch, name, *rows, arguments=(), copies=1):
    """The record that a command with these arguments keeps."""
    words = [*arguments, f"--json={folder / 'figures.json'}", "--record", str(folder / f"{name}.json")]
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    monkeypatch.setitem(record.sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name="benchmarks.x")))
    parser = benchmark_parser("")
    parser.add_argument("--only")
    show([printed(*rows)] * copies, parser.parse_args(), {})
    return read(name)


def test_a_record_holds_the_printed_table_and_the_command_that_made_it(folder, monkeypatch, capsys):
    found = kept(folder, monkeypatch, "a", ("real", "2.5"), arguments=("--only", "two words"))
    assert "2.5" in capsys.readouterr().out
    assert found.sheets == (Sheet("speed", ("case", "ratio"), (("real", "2.5"),)),)
    assert found.command == "python -m benchmarks.x --only 'two words'"
    assert not found.transcribed and "cores" in found.machine


def test_without_a_file_nothing_is_kept(folder, capsys):
    show([printed(("real", "2.5"))], benchmark_parser("").parse_args([]), {})
    assert not list(folder.iterdir()) and "real" in capsys.readouterr().out


def test_an_option_is_a_default_and_its_help():
    parser = benchmark_parser("", rows=8, wait_s=(0.5, "seconds"), sweep=[1, 2], full=(False, "everything"))
    options = parser.parse_args(["--wait-s", "2", "--sweep", "4", "--full"])
    assert (options.rows, options.wait_s, options.sweep, options.full, options.json) == (8, 2.0, [4], True, None)


def test_two_tables_of_one_record_stay_apart(folder, monkeypatch):
    monkeypatch.setattr(benchmark_tables, "TABLES", {"one": (("a",), ())})
    kept(folder, monkeypatch, "a", ("real", "2.5"), copies=2)
    assert tables("one").count("Speed:\n\n| case | ratio |") == 2


def test_records_with_the_same_columns_are_one_table_that_names_each_rows_origin(folder, monkeypatch):
    monkeypatch.setattr(benchmark_tables, "TABLES", {"both": (("a", "b"), ())})
    kept(folder, monkeypatch, "a", ("real", "2.5"), ("fixed", "1.5"))
    kept(folder, monkeypatch, "b", ("wide", "3.5"), arguments=("--only", "wide"))
    text = tables("both")
    assert text.startswith("Speed:\n\n| case | ratio |") and text.count("| case |") == 1
    assert text.index("| wide | 3.5 |") < text.index("- Rows 1 to 2: `python -m benchmarks.x`")
    assert "- Row 3: `python -m benchmarks.x --only wide`." in text and "copied" not in text
    assert text.count("All rows: ") == text.count("cores") == 1


def test_every_transcribed_record_says_so_on_its_page():
    for names, _ in benchmark_tables.TABLES.values():
        for one in map(read, names):
            assert one.transcribed == ("copied by hand" in benchmark_tables._said(one)) and one.commit


def test_a_cell_is_found_by_the_beginning_of_its_row():
    sheets = (Sheet("", ("case", "faster"), (("short", "1.2x (1-2)"), ("long one", "2,770.5x"), ("idle", "39.4 %"))),)
    found = Record("c", "", "", "", "", False, sheets)
    assert number(found, "long", "faster") == 2770.5
    assert number(found, "idle", "faster") == pytest.approx(0.394)
    with pytest.raises(ValueError, match="no number"):
        number(found, "wide", "faster")


def test_a_figure_shows_some_columns_of_the_tables_that_have_them():
    first, other = Sheet("", ("case", "faster"), (("short", "1.2x"),)), Sheet("", ("case",), (("long",),))
    found = Record("c", "", "", "", "", False, (first, other))
    assert selected(found, ()) == [first, other]
    assert selected(found, ("faster",)) == [Sheet("", ("faster",), (("1.2x",),))]
    with pytest.raises(ValueError, match="no table with the columns faster, slower"):
        selected(found, ("faster", "slower"))


@pytest.mark.parametrize(
    ("form", "goals", "value", "said"),
    [
        ("{:.2f} × faster", {"at_least": 2.5}, 2.49, "2.5 ×, **missed**"),
        ("{:.2f} × faster", {"at_least": 2.5}, 2.5, "2.5 ×"),
        ("{:.1%}", {"at_most": 0.1}, 0.11, "10 %, **missed**"),
        ("{:.1%}", {"at_most": 0.1}, 0.0, "10 %"),
        ("{:.2f}", {}, 1.0, "–"),
    ],
)
def test_a_goal_is_missed_on_its_wrong_side(form, goals, value, said):
    assert Claim("", "", "", "", "", form, "", **goals).goal(value) == said
