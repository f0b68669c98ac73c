"""The schemas of well-known data sets, on small files of own problems written in exactly these schemas."""

import json
from pathlib import Path
from typing import Any, Self

import pytest
from datasets import Dataset

from r3env.data.loading import load_queries, load_table
from r3env.data.presets import PRESETS
from r3env.data.sources import DataError, parse_source
from r3env.envs.math import MathEnv
from r3env.grading import grade

SAMPLES = Path(__file__).parent / "samples"
ANSWERS = {
    "deepscaler": ["6", "\\frac{1}{6}", "-\\sqrt{5}", "\\text{(C)}", "[2, \\infty)"],
    "numinamath": ["6", "B"],
    "gsm8k": ["33", "3000", "-5"],
    "math": ["\\frac{7}{3}", "9"],
    "math500": [
        "\\left( 4, \\frac{\\pi}{3} \\right)",
        "x^2 - x - 2",
        "25\\%",
        "\\begin{pmatrix} 1 & 4 \\\\ 0 & 1 \\end{pmatrix}",
    ],
    "aime24": ["001", "090"],
    "aime24-math-ai": ["1", "90"],
    "aime25": ["70", "336^\\circ"],
    "amc23": ["90", "7"],
    "minerva": ["25", "6e14", "c e^{3 t}", "x'' + \\omega^2 x = 0"],
    "svamp": ["42", "2.5"],
    "mawps": ["12", "3.75"],
    "olympiadbench": ["7", "2, -2", "(2, 1)"],
    "olympiadbench-full": ["10", "\\pi r^{2}", "3,-2"],
    "gpqa": ["A", "D"],
    "mmlu-pro": ["C", "D"],
}
WITH_ANSWERS = [name for name in PRESETS if name not in ("ifeval", "ifbench")]


def sample(name: str) -> str:
    return str(SAMPLES / f"{name}.jsonl")


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(sample(name)).read_text(encoding="utf-8").splitlines()]


class FakeHub:
    """Stands for the library `datasets`, and for its reader of JSON files."""

    __module__ = "datasets.packaged_modules.json.json"

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def load_dataset_builder(self, *asked: str | None, revision: str | None) -> Self:
        self.named, self.revision = asked, revision
        return self

    def download_and_prepare(self) -> None:
        """Nothing to do."""

    def as_dataset(self, split: str) -> Dataset:
        self.asked = (*self.named, split, self.revision)
        return Dataset.from_list(self.rows, on_mixed_types="use_json")


@pytest.mark.parametrize("name", WITH_ANSWERS)
def test_the_reference_answers_pass_their_own_grader(name: str) -> None:
    queries = load_queries(sample(name), preset=name)
    assert [query.answer for query in queries] == ANSWERS[name]
    assert all(grade(f"\\boxed{{{query.answer}}}", query.answer).correct for query in queries)


@pytest.mark.parametrize("name", WITH_ANSWERS)
def test_the_preset_and_its_hub_id_read_the_same_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = PRESETS[name]
    expected = load_queries(sample(name), preset=name)
    for source in (f"preset:{name}", preset.hub_id, preset.hub_id.lower()):
        hub = FakeHub(rows_of(name))
        monkeypatch.setattr("datasets.load_dataset_builder", hub.load_dataset_builder)
        assert load_queries(source) == expected
        assert hub.asked[0].lower() == preset.hub_id.lower()  # type: ignore[union-attr]
        assert hub.asked[1:] == (preset.configuration, preset.split, None)


@pytest.mark.parametrize("name", WITH_ANSWERS)
def test_uids_do_not_depend_on_the_order(name: str, tmp_path: Path) -> None:
    path = tmp_path / "backwards.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(name)[::-1]))
    assert load_queries(str(path), preset=name) == load_queries(sample(name), preset=name)[::-1]


def test_split_and_revision_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(rows_of("gsm8k"))
    monkeypatch.setattr("datasets.load_dataset_builder", hub.load_dataset_builder)
    load_queries("preset:gsm8k@abc#test")
    assert hub.asked == ("openai/gsm8k", "main", "test", "abc")
    load_queries("openai/gsm8k:socratic#test", split="train")
    assert hub.asked == ("openai/gsm8k", "socratic", "train", None)


def test_environments_take_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset_builder", FakeHub(rows_of("gsm8k")).load_dataset_builder)
    from_hub, from_file = MathEnv("preset:gsm8k"), MathEnv(sample("gsm8k"), preset="gsm8k")
    assert from_hub.uids == from_file.uids
    from_file.reset(options={"uid": from_file.uids[1]})
    assert from_file.step("\\boxed{3,000}")[1] == 1.0


def test_a_box_in_the_solutions_of_math_needs_no_braces(tmp_path: Path) -> None:
    path = tmp_path / "math.jsonl"
    rows = ({"problem": f"{n}?", "solution": f"So $\\boxed {n}$.", "level": "Level 1"} for n in range(2))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert [query.answer for query in load_queries(str(path), preset="math")] == ["0", "1"]


def test_leading_zeros_of_aime_are_not_asked_for() -> None:
    assert grade("\\boxed{1}", load_queries(sample("aime24"), preset="aime24")[0].answer).correct


def test_what_the_rows_say_besides_is_used() -> None:
    first, *_ = load_queries(sample("math500"), preset="math500")
    assert (first.uid, first.level) == ("test/precalculus/9001.json", "2")
    with_context, *_ = load_queries(sample("olympiadbench-full"), preset="olympiadbench-full")
    assert with_context.problem == "Let $T$ be the number of digits of $123456789$.\n\nCompute $T + 1$."
    assert (with_context.uid, with_context.level) == ("9001", "Competition")


def test_problems_that_cannot_be_posed_or_graded_are_counted() -> None:
    _, counts = load_table(parse_source(sample("olympiadbench"), preset="olympiadbench"))
    assert (counts.rows, counts.queries, counts.unsuitable) == (4, 3, 1)
    _, counts = load_table(parse_source(sample("numinamath"), preset="numinamath"))
    assert (counts.rows, counts.queries, counts.unsuitable, counts.absent) == (5, 2, 2, {"'proof'": 1})
    _, counts = load_table(parse_source(sample("olympiadbench-full"), preset="olympiadbench-full"))
    assert (counts.rows, counts.queries, counts.unusable) == (4, 3, 1)


def test_a_solution_without_its_marker_is_unusable(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [*rows_of("gsm8k"), {"question": "?", "answer": "It is 5."}, {"question": "?", "answer": None}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, counts = load_table(parse_source(str(path), preset="gsm8k"))
    assert (counts.queries, counts.unusable) == (3, 2)


def test_a_solution_of_math_without_a_box_is_left_out_and_counted() -> None:
    table, counts = load_table(parse_source(sample("math"), preset="math"))
    assert (counts.rows, counts.queries, counts.unusable) == (3, 2, 1)
    assert [query.level for query in table.values()] == ["Level 1", "Level 3"]


def test_another_schema_is_an_error_not_an_empty_data_set() -> None:
    with pytest.raises(DataError, match="row 1: no column 'question'; fix: the nearest column is"):
        load_queries(sample("math500"), preset="gsm8k")


def test_own_columns_go_before_the_presets() -> None:
    queries = load_queries(sample("math500"), preset="math500", columns={"level": "subject"})
    assert queries[0].level == "Precalculus"


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(DataError, match="preset:gsm9k: there is no preset 'gsm9k'; fix: one of deepscaler, gsm8k"):
        load_queries("preset:gsm9k")
    with pytest.raises(DataError, match="there is no preset 'gsm9k'"):
        MathEnv(sample("gsm8k"), preset="gsm9k").uids  # noqa: B018
