"""Real files of seven data sets in the folder that R3_REAL names; their texts are not in this repository."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3env.check import check_references
from r3env.data.loading import Selection, load_table
from r3env.data.sources import parse_source
from r3env.data.templates import template
from r3env.grading import grade

REAL = Path(os.environ.get("R3_REAL", ""))
pytestmark = pytest.mark.skipif(
    not os.environ.get("R3_REAL") or not REAL.is_dir(),
    reason="R3_REAL names no folder of real files (gsm8k_test.jsonl, mawps.jsonl, svamp.jsonl, …)",
)

# File, preset, rows, queries. Of MAWPS 84 rows repeat another one.
FILES = [
    ("gsm8k_train", "gsm8k", 7473, 7473),
    ("gsm8k_test", "gsm8k", 1319, 1319),
    ("mawps", "mawps", 2065, 1981),
    ("svamp", "svamp", 1000, 1000),
    ("aime24", "aime24", 30, 30),
    ("amc23", "amc23", 40, 40),
    ("minerva_math", "minerva_math", 272, 272),
    ("olympiadbench", "olympiadbench", 675, 675),
]
# By form: how many references can be written so, all of which are paid.
FORMS = {
    "gsm8k_train": {"with a unit": 7473, "in another format": 7473},
    "gsm8k_test": {"with a unit": 1319, "in another format": 1319},
    "mawps": {"with a unit": 1981, "in another format": 1981},
    "svamp": {"with a unit": 1000, "in another format": 1000},
    "aime24": {"with a unit": 30, "in another format": 30},
    "amc23": {"with a unit": 40, "in another format": 40},
    "minerva_math": {"bare": 9, "with a unit": 130, "in another format": 271},
    "olympiadbench": {"bare": 14, "with a unit": 454, "in another format": 675},
}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (REAL / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("name", "preset", "read", "queries"), FILES)
def test_every_row_is_paid_for_its_own_answer_and_for_other_forms_of_it(
    name: str, preset: str, read: int, queries: int
) -> None:
    table, counts = load_table(parse_source(f"preset:{preset}:{REAL / name}.jsonl"))
    assert (counts.rows, counts.queries, counts.unusable, counts.absent.total()) == (read, queries, 0, 0)
    unpayable, graded, paid = Counter[str](), Counter[str](), Counter[str]()
    for checked in check_references(table, 5.0):
        unpayable[checked.unpayable] += 1
        graded.update(checked.forms.keys())
        paid.update(form for form, is_paid in checked.forms.items() if is_paid)
    assert unpayable == {"": queries}
    assert graded == paid == FORMS[name]


@pytest.mark.parametrize(("name", "preset", "read", "queries"), FILES)
def test_without_a_preset_the_rows_are_recognized(name: str, preset: str, read: int, queries: int) -> None:
    table, _ = load_table(parse_source(f"{REAL / name}.jsonl"))
    expected, _ = load_table(parse_source(f"preset:{preset}:{REAL / name}.jsonl"))
    assert len(table) == queries
    graded = [
        grade(f"\\boxed{{{one.answer}}}", other.answer)
        for one, other in zip(table.values(), expected.values(), strict=True)
    ]
    assert all(verdict.correct for verdict in graded)


@pytest.mark.parametrize("name", ["gsm8k_train", "gsm8k_test"])
def test_the_words_of_gsm8k_s_own_solutions_are_paid(name: str) -> None:
    solutions = {row["question"].strip(): row["answer"] for row in rows(name)}
    table, _ = load_table(parse_source(f"preset:gsm8k:{REAL / name}.jsonl"))
    for query in table.values():
        words, _, last = solutions[query.problem].rpartition("####")
        assert grade(f"{words}The answer is \\boxed{{{last.strip()}}}.", query.answer).correct, query
        for form in ("after:####", "last_number"):
            assert grade(solutions[query.problem], query.answer, form=form).correct, query


def amc_published(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "question", "answer", "url")}


def amc_evaluation(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "problem", "answer", "url")}


def minerva_published(row: dict[str, Any]) -> dict[str, Any]:
    return {"question": row["problem"], "answer": answers_of(f"{REAL / 'minerva_math'}.jsonl")[row["problem"].strip()]}


def mawps_published(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["idx"], "question": row["input"], "result": str(row["target"])}


def mawps_authors(row: dict[str, Any]) -> dict[str, Any]:
    return {"iIndex": row["idx"], "sQuestion": row["input"], "lEquations": ["x=1"], "lSolutions": [row["target"]]}


def mawps_toolkit(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["idx"], "original_text": row["input"], "ans": row["target"], "equation": "x=1"}


def svamp_published(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"Answer": str(row["Answer"])}


def olympiad_published(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"modality": "Text-only", "difficulty": "Competition", "language": "English"}


def answers_of(source: str) -> dict[str, str]:
    return {query.problem: query.answer for query in load_table(parse_source(source, preset="minerva"))[0].values()}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("name", "preset", "form"),
    [
        ("amc23", "amc23", amc_published),
        ("amc23", "amc23", amc_evaluation),
        ("minerva_math", "minerva", minerva_published),
        ("mawps", "mawps", mawps_published),
        ("mawps", "mawps", mawps_authors),
        ("mawps", "mawps", mawps_toolkit),
        ("svamp", "svamp", svamp_published),
        ("olympiadbench", "olympiadbench", olympiad_published),
    ],
)
def test_published_columns_and_those_of_evaluation_suites_give_the_same_queries(
    tmp_path: Path, name: str, preset: str, form: Callable[[dict[str, Any]], dict[str, Any]], suffix: str
) -> None:
    path = tmp_path / f"rows{suffix}"
    formed = [form(row) for row in rows(name)]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(formed), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in formed), encoding="utf-8")
    given, _ = load_table(parse_source(str(path), preset=preset))
    expected, _ = load_table(parse_source(f"preset:{preset}:{REAL / name}.jsonl"))
    assert [(one.problem, one.answer) for one in given.values()] == [
        (one.problem, one.answer) for one in expected.values()
    ]


def test_a_preset_reads_a_file_in_a_folder_with_any_name(tmp_path: Path) -> None:
    (tmp_path / "a b#c@d").mkdir()
    path = shutil.copy(REAL / "aime24.jsonl", tmp_path / "a b#c@d" / "copy.jsonl")
    assert load_table(parse_source(f"preset:aime24:{path}"))[1].queries == 30


def test_svamps_equations_are_worked_solutions() -> None:
    selection = Selection(columns={"solution": "solution"})
    table, _ = load_table(parse_source(f"preset:svamp:{REAL / 'svamp.jsonl'}"), selection)
    solutions = [(str(query.info["solution"]), query.answer) for query in table.values()]
    assert len(solutions) == 1000
    assert all(grade(solution, answer, form="last_number").correct for solution, answer in solutions)


@pytest.mark.parametrize(("name", "templates"), [("svamp", 1000), ("gsm8k_train", 7472), ("mawps", 1609)])
def test_problems_that_differ_in_their_numbers_alone_have_one_template(name: str, templates: int) -> None:
    table, _ = load_table(parse_source(f"{REAL / name}.jsonl"))
    assert len({template(query.problem) for query in table.values()}) == templates
