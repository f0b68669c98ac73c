"""Loading queries: formats, uids, and errors of one line each."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

import r3env
from r3env.check import check_references
from r3env.core import Query
from r3env.data.loading import Counts, Selection, load_queries, load_table
from r3env.data.query_table import QueryTable
from r3env.data.readers import read_rows
from r3env.data.sources import DataError, parse_source
from r3env.envs.math import token_counter

ROWS: list[dict[str, Any]] = [
    {"problem": "1+1?", "answer": "2", "level": "easy"},
    {"problem": "Größer: 2 oder 3?", "answer": "3", "level": "hard"},
]


def jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write(folder: Path, suffix: str) -> str:
    path = folder / f"problems{suffix}"
    match suffix:
        case ".jsonl":
            return jsonl(path, ROWS)
        case ".json":
            path.write_text(json.dumps(ROWS))
        case ".csv":
            lines = [",".join(row.values()) for row in ROWS]
            path.write_text("\n".join(["problem,answer,level", *lines]), encoding="utf-8")
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(ROWS), path)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_format_gives_the_same_queries(tmp_path: Path, suffix: str) -> None:
    queries = load_queries(write(tmp_path, suffix))
    expected = load_queries(write(tmp_path, ".jsonl"))
    assert queries == expected
    assert [(query.problem, query.answer, query.level) for query in queries] == [tuple(row.values()) for row in ROWS]


def test_uids_come_from_the_content_whatever_the_order(tmp_path: Path) -> None:
    forwards = load_queries(jsonl(tmp_path / "a.jsonl", ROWS))
    backwards = load_queries(jsonl(tmp_path / "b.jsonl", ROWS[::-1]))
    assert forwards == backwards[::-1]
    assert all(re.fullmatch("[0-9a-f]{16}", query.uid) for query in forwards)
    shifted = [{"problem": "1+1?2", "answer": "3"}, {"problem": "1+1?", "answer": "23"}]
    assert len({query.uid for query in load_queries(jsonl(tmp_path / "c.jsonl", shifted))}) == 2


def test_exact_duplicates_are_dropped_and_the_limit_counts_what_is_left(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [ROWS[0], ROWS[0], ROWS[1]])
    assert len(load_queries(path)) == 2
    assert [query.problem for query in load_queries(path, limit=2)] == [row["problem"] for row in ROWS]
    with pytest.raises(ValueError, match="limit"):
        load_queries(path, limit=0)


def test_rows_that_differ_in_what_nobody_asked_for_are_duplicates(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [ROWS[0] | {"hints": "Count."}, ROWS[0] | {"hints": "Add."}])
    table, counts = load_table(parse_source(path), Selection(optional=("hints",)))
    assert (len(table), counts.duplicates) == (1, 1)
    with pytest.raises(DataError, match="already names other content"):
        load_table(parse_source(path), Selection({"hints": "hints"}))


def test_columns_can_be_mapped_and_numbers_become_text(tmp_path: Path) -> None:
    rows = [{"id": 7, "question": " What? ", "final": 2.5, "hardness": 3}]
    columns = {"uid": "id", "problem": "question", "answer": "final", "level": "hardness"}
    queries = load_queries(jsonl(tmp_path / "a.jsonl", rows), columns=columns)
    assert queries == [Query("7", "What?", "2.5", "3")]


def test_line_separators_inside_json_strings_and_byte_order_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"problem": "a\u2028b", "answer": "1"}\r\n\n', encoding="utf-8")
    assert [query.problem for query in load_queries(str(path))] == ["a\u2028b"]


def test_csv_cells_may_hold_commas_line_breaks_and_whole_solutions(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    long = "x" * 200_000
    path.write_text(f'problem,answer\n"a, b\nc",1\n{long},2\n', encoding="utf-8")
    assert [query.problem for query in load_queries(str(path))] == ["a, b\nc", long]


GOOD_LINE = b'{"problem": "p", "answer": "1"}\n'


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_further_columns_are_kept_under_the_names_that_they_are_given(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"problem": "1+1?", "answer": "2", "my_hint": "Count.", "steps": [{"n": 1}], "unasked": 7},
        {"problem": "1+2?", "answer": "3", "my_hint": None, "steps": [], "unasked": 8},
    ]
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        jsonl(path, rows)
    queries = load_queries(str(path), columns={"hint": "my_hint", "solution": "steps"})
    assert [query.info for query in queries] == [
        {"hint": "Count.", "solution": [{"n": 1}]},
        {"hint": None, "solution": []},
    ]
    plain = load_queries(str(path))
    assert [query.uid for query in plain] == [query.uid for query in queries]
    assert [query.info for query in plain] == [{}, {}]
    assert len(set(queries)) == 2  # a query can still stand in a set
    with pytest.raises(DataError, match="row 1: no column 'my_hnit'; fix: the nearest column is 'my_hint'"):
        load_queries(str(path), columns={"hint": "my_hnit"})


def test_a_further_column_that_is_no_plain_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"problem": "p", "answer": "1", "sound": b"wav"}]), path)
    with pytest.raises(DataError, match="row 1: 'sound' is not plain data .*; fix: make 'sound' text"):
        load_queries(str(path), columns={"sound": "sound"})
    assert load_queries(str(path))[0].info == {}


BROKEN: list[tuple[str, bytes, dict[str, str], str]] = [
    ("a.jsonl", GOOD_LINE + b'{"problem": "p", "ans', {}, "row 2: incomplete or invalid JSON"),
    ("a.jsonl", b"[1, 2]\n", {}, "row 1: a JSON list; fix: make each row a JSON object"),
    ("a.json", b'[{"problem": "p"', {}, "incomplete or invalid JSON"),
    ("a.json", GOOD_LINE, {}, "holds a JSON dict; fix: one JSON list"),
    ("a.csv", b'problem,answer\np,1\n"torn,2\n', {}, "row 2: incomplete CSV"),
    ("a.csv", b"problem,answer\np,1,2\n", {}, "row 1: more cells than the header"),
    ("a.csv", b"problem,answer\np\n", {}, "leaves no queries: 0 queries from 1 rows (1 without a reference: 1 null"),
    ("a.parquet", b"PAR1 this is none", {}, "not a Parquet file"),
    ("a.jsonl", b'{"problem": "p", "anwser": "1"}', {}, "row 1: no column 'answer'; fix: the nearest "),
    (
        "a.jsonl",
        b'{"problem": "p", "anwser": "1"}',
        {},
        "column is 'anwser', of problem, anwser; map it with columns.answer",
    ),
    ("a.jsonl", GOOD_LINE, {"problem": "q"}, "no column 'q'; fix: the nearest column is"),
    ("a.jsonl", GOOD_LINE, {"problem": "q"}, "; map it with columns.problem"),
    ("a.jsonl", GOOD_LINE, {"uid": "id"}, "no column 'id'"),
    ("a.jsonl", GOOD_LINE, {"hint": "q"}, "row 1: no column 'q'; fix: the nearest column is"),
    ("a.jsonl", b'{"problem": "p", "answer": null}', {}, "(1 without a reference: 1 null left out); fix: map the col"),
    ("a.jsonl", b'{"problem": "p", "answer": NaN}', {}, "(1 without a reference: 1 null left out); fix: map the col"),
    ("a.jsonl", b'\n{"problem": " \\n", "answer": "1"}', {}, "row 2: 'problem' is empty"),
    ("a.jsonl", b'{"problem": ["p"], "answer": "1"}', {}, "row 1: 'problem' holds a list"),
    (
        "a.jsonl",
        b'{"problem": "p", "answer": {"target": 7, "numbers": [3]}}',
        {},
        "row 1: 'answer' holds an object of target, numbers; fix: map one",
    ),
    ("a.jsonl", GOOD_LINE + b'{"problem": "\xe4"}', {}, "row 2: not UTF-8 (byte 0xe4)"),
    (
        "a.jsonl",
        b'{"uid": 1, "problem": "p", "answer": "1"}\n{"uid": 1, "problem": "p", "answer": "2"}',
        {},
        "row 2: uid '1' already names other content in row 1",
    ),
    ("a.jsonl", GOOD_LINE + b"[" * 100_000, {}, "row 2: JSON that is nested too deeply"),
    ("a.json", b"[" + GOOD_LINE + b"," + b"[" * 100_000, {}, "row 2: JSON that is nested too deeply"),
    ("a.json", b"[" * 100_000, {}, "row 1: JSON that is nested too deeply"),
    ("a.json", b'{"a":' * 100_000, {}, "row 1: JSON that is nested too deeply"),
    (
        "a.jsonl",
        GOOD_LINE + b'{"problem": "p", "answer": ' + b"7" * 5000 + b"}",
        {},
        "row 2: a number of too many digits; fix: write it as text",
    ),
    ("a.json", b'[{"problem": "p", "answer": ' + b"7" * 5000 + b"}]", {}, "row 1: a number of too many digits"),
    ("a.jsonl", b'{"problem": "p", "answer": 1e999}', {}, "row 1: 'answer' holds a number that is not finite"),
    ("a.jsonl", b'{"problem": "p", "answer": -Infinity}', {}, "row 1: 'answer' holds a number that is not finite"),
    ("a.jsonl", b'{"problem": false, "answer": "1"}', {}, "row 1: 'problem' holds a bool"),
    ("a.jsonl", b'{"problem": "a\\ud800b", "answer": "1"}', {}, "row 1: 'problem' holds half a character"),
    ("a.json", b'[{"problem": "p", "answer": "\\udfff"}]', {}, "row 1: 'answer' holds half a character"),
    ("a.jsonl", b'{"uid": "\\ud800", "problem": "p", "answer": "1"}', {}, "row 1: 'uid' holds half a character"),
    ("a.jsonl", b'{"problem": "p", "answer": "1", "answer": "2"}', {}, "row 1: the key 'answer' occurs twice"),
    ("a.json", b'[{"problem": "p", "\\ud800": "1", "\\ud800": "2"}]', {}, "row 1: the key"),
    ("a.csv", b"problem,answer,answer\np,1,2\n", {}, "the header names the column 'answer' twice"),
    ("a.jsonl", b"\n", {}, "holds no rows"),
    ("a.txt", b"", {}, "has no known format (.txt)"),
]


@pytest.mark.parametrize(("name", "content", "columns", "message"), BROKEN)
def test_broken_data_is_named_in_one_line(
    tmp_path: Path, name: str, content: bytes, columns: dict[str, str], message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_queries(str(path), columns=columns)
    line = str(caught.value)
    assert line.startswith(str(path)) and message in line and "; fix: " in line
    assert len(line.splitlines()) == 1
    assert str(pickle.loads(pickle.dumps(caught.value))) == line  # it may have to cross processes


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([["p"], ["1"], ["2"]], names=["problem", "answer", "answer"]), path)
    with pytest.raises(DataError, match="the header names the column 'answer' twice"):
        load_queries(str(path))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{folder}/problem.jsonl", "no such file; fix: the nearest name in {folder} is 'problems.jsonl'"),
        ("{folder}/far.csv", "no such file; fix: name an existing file"),
        ("{folder}/nowhere/problems.jsonl", "no such file; fix: there is no folder {folder}/nowhere"),
        ("{folder}", "is a folder; fix: name a file"),
        ("{folder}/unknown", "neither a file nor a Hub id"),
        ("embedded:tarin", "no such embedded problems; fix: embedded:train"),
    ],
)
def test_missing_sources_are_named_in_one_line(tmp_path: Path, source: str, message: str) -> None:
    jsonl(tmp_path / "problems.jsonl", ROWS)
    with pytest.raises(DataError) as caught:
        load_queries(source.format(folder=tmp_path))
    assert message.format(folder=tmp_path) in str(caught.value)


class FakeHub:
    """Stands for the library `datasets`; says what it was asked for."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.asked: list[tuple[str, str | None, str, str | None]] = []

    def load_dataset_builder(self, name: str, configuration: str | None, *, revision: str | None) -> "FakeBuilder":
        return FakeBuilder(self, (name, configuration, revision))


class FakeBuilder:
    """Stands for the library's reader of JSON files."""

    __module__ = "datasets.packaged_modules.json.json"

    def __init__(self, hub: FakeHub, asked: tuple[str, str | None, str | None]) -> None:
        self.hub, self.asked = hub, asked

    def download_and_prepare(self) -> None:
        self.rows = self.hub.rows

    def as_dataset(self, split: str) -> Dataset:
        name, configuration, revision = self.asked
        self.hub.asked.append((name, configuration, split, revision))
        if split == "none":
            raise ValueError('Unknown split "none".\nShould be one of [...]')
        return Dataset.from_list(self.rows)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(ROWS)
    monkeypatch.setattr("datasets.load_dataset_builder", fake.load_dataset_builder)
    return fake


@pytest.mark.parametrize(
    ("source", "arguments", "asked"),
    [
        ("owner/problems", {}, ("owner/problems", None, "train", None)),
        ("owner/problems:main", {"split": "test"}, ("owner/problems", "main", "test", None)),
        ("owner/problems@v1.0#test", {}, ("owner/problems", None, "test", "v1.0")),
        ("owner/problems:main@refs/pr/1", {"revision": "abc"}, ("owner/problems", "main", "train", "abc")),
        ("owner/problems#train[:10%]", {}, ("owner/problems", None, "train[:10%]", None)),
    ],
)
def test_hub_ids_go_to_the_datasets_library(
    hub: FakeHub, source: str, arguments: dict[str, str], asked: tuple[str, str | None, str, str | None]
) -> None:
    assert len(load_queries(source, **arguments)) == 2  # type: ignore[arg-type]
    assert hub.asked == [asked]


def test_a_hub_data_set_that_cannot_be_loaded_is_named_in_one_line(hub: FakeHub) -> None:
    with pytest.raises(DataError, match="owner/problems: cannot be loaded from the Hub .Unknown split"):
        load_queries("owner/problems", split="none")


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_limit_reads_no_further(tmp_path: Path, suffix: str) -> None:
    path = Path(write(tmp_path, suffix))
    if suffix == ".jsonl":
        path.write_text(path.read_text() + "torn {")
    assert len(load_queries(str(path), limit=2)) == 2


def test_long_prompts_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"problem": "p" * length, "answer": "1"} for length in (3, 10, 11, 200)]
    source = parse_source(jsonl(tmp_path / "a.jsonl", [*rows, rows[0]]))
    table, counts = load_table(source, Selection(max_prompt_length=10))
    assert [len(query.problem) for query in table.values()] == [3, 10]
    assert counts == Counts(rows=5, queries=2, too_long=2, duplicates=1)
    assert str(counts) in caplog.text
    assert str(counts) == "2 queries from 5 rows (1 duplicates, 2 too long left out)"
    _, counts = load_table(source, Selection(max_prompt_length=10, prompt_length=lambda query: 5))
    assert counts.too_long == 0
    with pytest.raises(DataError, match="leaves no queries: 0 queries from 5 rows .5 too long left out"):
        load_table(source, Selection(max_prompt_length=1))
    with pytest.raises(ValueError, match="max_prompt_length"):
        Selection(max_prompt_length=0)


def test_prompts_can_be_measured_in_tokens() -> None:
    folder = str(Path(r3env.__file__).parent / "assets" / "tiny")
    count = token_counter(folder)
    assert count("12+34") == count("12") + count("+34") >= 3
    with pytest.raises(ValueError, match=r"tokenizer: '.*readers.py' cannot be loaded"):
        token_counter(str(Path(r3env.__file__).parent / "readers.py"))


JSON_LISTS = [
    "[]",
    "  [ ] ",
    '[{"problem": "a", "answer": "1"}]',
    '[\n{"problem": "a", "answer": "1"} ,\n {"problem": "]},{", "answer": "2"}\n]\n',
    '\ufeff[{"problem": "\\ud83d\\ude00 \U0001f600", "answer": [{"x": {}}]}]',
]


@pytest.mark.parametrize("text", JSON_LISTS)
@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 16])
def test_json_lists_are_read_alike_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, chunk: int
) -> None:
    monkeypatch.setattr("r3env.data.json_rows._CHUNK_CHARS", chunk)
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    rows = [row for _, row in read_rows(parse_source(str(path)))]
    assert rows == json.loads(text.removeprefix("\ufeff"))


@pytest.mark.parametrize("chunk", [1, 5, 1 << 16])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        '[{"a": 1}',
        '[{"a": 1},',
        '[{"a": 1},]',
        '[{"a": 1} {"a": 2}]',
        '[{"a": 1}] x',
        '[{"a": 1}]]',
        "[}",
        "x",
    ],
)
def test_broken_json_lists_are_refused_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, chunk: int
) -> None:
    monkeypatch.setattr("r3env.data.json_rows._CHUNK_CHARS", chunk)
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match="incomplete or invalid JSON"):
        list(read_rows(parse_source(str(path))))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
def test_the_row_of_a_wrong_byte_is_named_in_every_text_format(tmp_path: Path, suffix: str) -> None:
    lines = {
        ".jsonl": [b'{"problem": "p%d", "answer": "1"}' % i for i in range(5000)],
        ".json": [b'%s{"problem": "p%d", "answer": "1"}' % (b"[" if i == 0 else b",", i) for i in range(5000)],
        ".csv": [b"problem,answer", *(b"p%d,1" % i for i in range(4999))],
    }[suffix]
    lines[3210] = lines[3210].replace(b"p3", b"p\xff3")
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"\n".join(lines) + (b"]" if suffix == ".json" else b""))
    with pytest.raises(DataError, match=r"row 3211: not UTF-8 \(byte 0xff\); fix: save the file as UTF-8"):
        load_queries(str(path))


def test_the_check_finds_reference_answers_that_cannot_be_given() -> None:
    fine = [Query("a", "p", "\\frac{1}{2}"), Query("b", "p", "x \\in [0, 1)"), Query("c", "p", "\\{1, 2\\}")]
    broken = [Query("d", "p", "\\frac{1}{2"), Query("e", "p", "\\text{the tag </think>}")]
    checked = check_references(QueryTable.from_queries([*fine, *broken]), 5.0)
    assert {one.query.uid for one in checked if one.unpayable} == {query.uid for query in broken}
