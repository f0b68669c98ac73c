"""Rows as trainers and data sets write them: conversations, nested columns, references of every kind."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3env.core import Query
from r3env.data import readers
from r3env.data.loading import Selection, load_queries, load_table
from r3env.data.sources import DataError, parse_source
from r3env.envs.math import MATH_INSTRUCTION, MathEnv

SUFFIXES = (".jsonl", ".parquet")
SYSTEM = {"role": "system", "content": "Answer briefly."}
SHOTS = ({"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"})
USER = {"role": "user", "content": "What is 2+3?"}
TRUTH = {"ground_truth": "5", "style": "rule"}


def write(folder: Path, rows: Sequence[dict[str, Any]], suffix: str = ".jsonl") -> str:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def verl(*turns: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"data_source": "sums", "prompt": list(turns), "reward_model": TRUTH, "extra_info": {"index": 3}, **more}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "row",
    [
        verl(SYSTEM, *SHOTS, USER),
        {"prompt": [SYSTEM, *SHOTS, USER], "answer": "5"},
        {"prompt": [SYSTEM, *SHOTS, USER], "solution": "It is \\boxed{5}."},
        {"messages": [SYSTEM, *SHOTS, USER], "ground_truth": "5"},
        {"messages": [SYSTEM, *SHOTS, USER, {"role": "assistant", "content": "5"}], "answer": 5},
    ],
)
def test_conversations_of_verl_and_trl_keep_their_roles(tmp_path: Path, row: dict[str, Any], suffix: str) -> None:
    (query,) = load_queries(write(tmp_path, [row], suffix))
    assert (query.problem, query.answer) == ("What is 2+3?", "5")
    assert query.turns == (SYSTEM, *SHOTS)
    env = MathEnv(write(tmp_path, [row], suffix))
    prompt, info = env.reset(seed=0)
    assert prompt == f"What is 2+3?\n\n{MATH_INSTRUCTION}"
    assert info["conversation"] == (SYSTEM, *SHOTS)
    _, info = env.reset(options={"uid": query.uid, "failed_attempt": "4"})
    assert info["conversation"] == (
        SYSTEM,
        *SHOTS,
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": "4"},
    )


def test_the_same_question_after_other_turns_is_another_query(tmp_path: Path) -> None:
    queries = load_queries(write(tmp_path, [verl(USER), verl(SYSTEM, USER), verl(USER)]))
    assert [query.turns for query in queries] == [(), (SYSTEM,)]
    assert queries[0].uid == load_queries(write(tmp_path, [{"problem": "What is 2+3?", "answer": "5"}]))[0].uid


@pytest.mark.parametrize(
    ("turns", "line"),
    [
        ([SYSTEM], "'prompt' ends in the turn of a role 'system'; fix: end it in a user turn"),
        ([USER, SHOTS[1]], "'prompt' ends in the turn of a role 'assistant'; fix: end it in a user turn"),
        ([{"role": "judge", "content": "?"}, USER], "has a turn 1 of the role 'judge'; fix: make it system, user or"),
        ([USER, {"role": "user", "content": ""}], "has no text in turn 2; fix: give each turn a text in 'content'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "has parts other than text in turn 1"),
        ([{"role": "user", "content": "half \ud800"}], "'prompt' holds half a character"),
    ],
)
def test_a_conversation_that_cannot_be_sampled_is_named_in_one_line(
    tmp_path: Path, turns: list[Any], line: str
) -> None:
    with pytest.raises(DataError) as caught:
        load_queries(write(tmp_path, [verl(*turns)]))
    assert line in str(caught.value) and "row 1: " in str(caught.value)


def test_parts_of_text_and_other_names_of_roles_are_read(tmp_path: Path) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "2+3?"}]}
    shared = [{"from": "system", "value": "Answer briefly."}, {"from": "human", "value": "What is 2+3?"}]
    first, second = load_queries(write(tmp_path, [verl(parts), verl(*shared)]))
    assert (first.problem, second.problem, second.turns) == ("What is\n2+3?", "What is 2+3?", (SYSTEM,))


INSTRUCTED = [
    "Reason, and put your final answer within \\boxed{}.",
    "Give the answer in a \\boxed{}.",
    "Please write the result as \\boxed{answer}.",
    "Let's think step by step and output the final answer within $\\boxed{}$.",
    "Present the answer in LaTex format: \\boxed{Your answer}",
    "Return your final answer inside `\\boxed{...}`.",
    "The final answer goes into boxed{}",
    "Output the answer using \\boxed.",
    "请把最终答案放在\\boxed{}中。",
    MATH_INSTRUCTION,
]


@pytest.mark.parametrize("text", INSTRUCTED)
def test_an_instruction_that_the_row_holds_is_not_added_again(text: str) -> None:
    env = MathEnv()
    in_user = Query("u", f"What is 2+3?\n{text}", "5")
    in_system = Query("u", "What is 2+3?", "5", turns=({"role": "system", "content": text},))
    assert env.prompt(in_user) == in_user.problem and env.prompt(in_system) == in_system.problem


@pytest.mark.parametrize(
    "text",
    [
        "Fill the squares: \\boxed{\\phantom{0}} + 3 = 7.",
        "A gift with boxed chocolates costs 3.",
        "What is \\boxed{a} if a = 3?",
        'Output the final answer after "####".',
        "What is 2+3?",
    ],
)
def test_a_box_that_a_problem_draws_is_no_instruction(text: str) -> None:
    assert MathEnv().prompt(Query("u", text, "5")).endswith(MATH_INSTRUCTION)
    shown = Query("u", text, "5", turns=({"role": "assistant", "content": "within \\boxed{4}"},))
    assert MathEnv().prompt(shown).endswith(MATH_INSTRUCTION)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_within_columns_are_named_by_dots(tmp_path: Path, suffix: str) -> None:
    row = verl(USER, extra_info={"index": 3, "tags": ["sum", "easy"], "about": '{"source": "school"}'})
    columns = {
        "answer": "reward_model.ground_truth",
        "problem": "prompt.0.content",
        "level": "extra_info.tags.1",
        "uid": "extra_info.index",
        "source": "extra_info.about.source",
    }
    (query,) = load_queries(write(tmp_path, [row], suffix), columns=columns)
    assert query == Query("3", "What is 2+3?", "5", "easy", {"source": "school"})
    with pytest.raises(DataError) as caught:
        load_queries(write(tmp_path, [row], suffix), columns={"answer": "reward_model.truth"})
    line = "no column 'reward_model.truth'; fix: the nearest column is 'reward_model.ground_truth', of data_source, "
    assert line in str(caught.value) and "; map it with columns.answer" in str(caught.value)


def test_a_name_with_a_dot_is_a_name_first(tmp_path: Path) -> None:
    row = {"problem": "p", "meta.answer": "1", "meta": {"answer": "2"}, "a.b": {"c.d": "3"}}
    assert load_queries(write(tmp_path, [row]), columns={"answer": "meta.answer"})[0].answer == "1"
    assert load_queries(write(tmp_path, [row]), columns={"answer": "a.b.c.d"})[0].answer == "3"


REFERENCES: list[tuple[Any, str]] = [
    ("18", "18"),
    (18, "18"),
    (18.0, "18"),
    (-0.5, "-0.5"),
    (0.30000000000000004, "0.3"),
    (12.000000000000002, "12"),
    (4.199999999999999, "4.2"),
    ([0.1 + 0.2, 1.5], "0.3, 1.5"),
    (1 / 7, "0.14285714285714285"),
    (1234567890123456.0, "1234567890123456"),
    (1234567890123.125, "1234567890123.125"),
    (1e20, "1e+20"),
    (12345678901234567890, "12345678901234567890"),
    (True, "True"),
    (False, "False"),
    ([2, 3], "2, 3"),
    (["18"], "18"),
    (["$\\frac{1}{2}$"], "\\frac{1}{2}"),
    (["\\boxed{7}"], "7"),
    ([2.0, 3.5, True], "2, 3.5, True"),
    ([[1, 2], [3, 4]], "(1, 2), (3, 4)"),
    ([["x"]], "x"),
    ([None, "4"], "4"),
    ('["36"]', "36"),
    ("['2', '3']", "2, 3"),
    ("[2, 3]", "[2, 3]"),
    ('["a", "b"]', "a, b"),
    (["\\frac{1}{2}", "0.5", "$1/2$"], "\\frac{1}{2}"),
    (["5 apples", "5 oranges"], "5 apples, 5 oranges"),
    (["50", "50%"], "50, 50%"),
    (["0.5", "1/2", "0.5"], "0.5, 0.5"),
    ([1, 1], "1, 1"),
    ("\\boxed{7}", "\\boxed{7}"),
    ("He sells <<9*2=18>>18 every day.\n#### 18", "18"),
    ("So 1,000 + 234.\n#### 1,234", "1234"),
    ("#### -5", "-5"),
    ("Half.\n#### $1,234.50", "$1234.50"),
    ("The heading\n#### is\nno answer", "The heading\n#### is\nno answer"),
]


@pytest.mark.parametrize(("given", "text"), REFERENCES)
def test_references_are_read_as_what_they_are(tmp_path: Path, given: Any, text: str) -> None:
    path = write(tmp_path, [{"problem": "p", "answer": given}])
    assert load_queries(path)[0].answer == text


def test_lists_are_counted_as_each_element_may_be_an_answer_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [["Paris", "City of Paris"], '["2", "3"]', ["18"], ["1/2", "0.5"], "1, 2"]
    rows = [{"problem": f"p{number}", "answer": answer} for number, answer in enumerate(answers)]
    load_queries(write(tmp_path, rows))
    assert "2 references are lists, and a response has to give every element; where each is an answer" in caplog.text


@pytest.mark.parametrize(
    "column",
    [
        pa.array([18], pa.int16()),
        pa.array([18.0], pa.float32()),
        pa.array(["18"], pa.large_string()),
        pa.array([18], pa.decimal128(10, 0)),
        pa.array(["18"]).dictionary_encode(),
        pa.array([["18"]], pa.list_(pa.string())),
        pa.array([[18]], pa.list_(pa.int64(), 1)),
    ],
)
def test_types_of_parquet_are_read_as_their_values(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"problem": ["p"], "answer": column}), tmp_path / "a.parquet")
    assert load_queries(str(tmp_path / "a.parquet"))[0].answer == "18"


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "<image 1>What is x?", "answer": "2", "images": ["a.png"]},
        {"problem": "What is x?", "answer": "2", "images": [{"bytes": None, "path": "a.png"}]},
        {"problem": "What is x?", "answer": "2", "image": {"bytes": "iVBOR", "path": None}},
        {"problem": "What is x?", "answer": "2", "Image": "figures/1.PNG"},
    ],
)
def test_a_problem_with_a_picture_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="row 2: the problem has a picture, .* fix: leave the row out"):
        plain = {"problem": "1 + 1", "answer": "2", "images": [], "image": "python:3.12", "image_source": "x.org/a.png"}
        load_queries(write(tmp_path, [plain, row]))


def test_pictures_of_the_hub_are_seen_as_those_of_its_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"bytes": b"no picture at all", "path": None}
    plain = {"problem": datasets.Value("string"), "answer": datasets.Value("string")}
    one, several = (
        datasets.Dataset.from_dict(
            {"problem": ["What is x?"], "answer": ["2"], "image": [value]},
            datasets.Features({**plain, "image": kind}),
        )
        for value, kind in ((cell, datasets.Image()), ([cell], datasets.List(datasets.Image())))
    )
    for each in (one, several):
        builder = SimpleNamespace(download_and_prepare=lambda: None, as_dataset=lambda split, each=each: each)
        monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, builder=builder, **__: builder)
        monkeypatch.setattr(readers, "_check_reader", lambda *_: None)
        with pytest.raises(DataError, match="row 1: the problem has a picture"):
            load_queries("owner/pictures")


def test_columns_of_mixed_types_are_read_as_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = datasets.Dataset.from_list(
        [{"problem": "a", "answer": 2}, {"problem": "b", "answer": "two"}], on_mixed_types="use_json"
    )
    builder = SimpleNamespace(download_and_prepare=lambda: None, as_dataset=lambda split: rows)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: builder)
    monkeypatch.setattr(readers, "_check_reader", lambda *_: None)
    assert [query.answer for query in load_queries("owner/mixed")] == ["2", "two"]


def test_references_that_nobody_writes_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = "First she eats three of the eggs, then she bakes four, so nine are left to sell at the market."
    rows = [{"problem": p, "answer": a} for p, a in (("a", whole), ("b", '{"inputs": ["1"]}'), ("c", "{1, 2}"))]
    assert len(load_queries(write(tmp_path, rows))) == 3
    assert "2 references are whole texts or objects, which no response repeats word for word" in caplog.text


ABSENT = ["proof", "Proof", "notfound", "Not Found", "None", "none.", "N/A", "n/a", "\\text{proof}", "$\\text{N/A}$"]


def test_references_that_are_none_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers = ["4", *ABSENT, "proof", None, "", "  ", [], [""], '[""]', [None], float("nan")]
    rows = [{"problem": f"p{number}", "answer": answer} for number, answer in enumerate(answers)]
    with caplog.at_level(logging.WARNING):
        table, counts = load_table(parse_source(write(tmp_path, rows)))
    assert [query.answer for query in table.values()] == ["4"]
    assert counts.absent["'proof'"] == 2 and counts.absent["null"] == 2 and counts.absent["empty"] == 6
    assert sum(counts.absent.values()) == len(answers) - 1
    assert "1 queries from 20 rows (19 without a reference: 6 empty, 2 'proof', 2 null" in caplog.text


@pytest.mark.parametrize("answer", ["no solution", "0", "nan = 3", "prove", "unknown", "no", "\\varnothing"])
def test_an_answer_that_only_sounds_like_none_is_kept(tmp_path: Path, answer: str) -> None:
    assert load_queries(write(tmp_path, [{"problem": "p", "answer": answer}]))[0].answer == answer


def test_data_without_any_reference_end_in_one_line(tmp_path: Path) -> None:
    rows = [{"problem": f"p{number}", "answer": "proof"} for number in range(3)]
    with pytest.raises(DataError) as caught:
        load_queries(write(tmp_path, rows))
    line = "leaves no queries: 0 queries from 3 rows (3 without a reference: 3 'proof' left out); fix: map the column"
    assert line in str(caught.value)


def test_the_share_of_references_that_a_guess_gets_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = ["Yes", "\\text{No}", "true", False, *range(36)]
    rows = [{"problem": f"p{number}", "answer": answer} for number, answer in enumerate(answers)]
    load_queries(write(tmp_path, rows))
    assert "4 of 40 references (10.0%) are yes or no, true or false: a guess is paid half the time" in caplog.text


def test_raw_rows_of_gsm8k_are_read_and_said_to_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = {"question": "How many?", "answer": "9 * 2 = <<9*2=18>>18 every day.\n#### 18"}
    (query,) = load_queries(write(tmp_path, [row]))
    assert (query.problem, query.answer) == ("How many?", "18")
    assert "1 references are what stands behind #### in the answer, as in GSM8K" in caplog.text
    assert "read problem from 'question'; to read others, name them in environment.columns" in caplog.text


def test_a_limit_hides_no_remark(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"question": f"How many of {n}?", "answer": f"Some.\n#### {n}"} for n in range(3)]
    assert len(load_queries(write(tmp_path, rows), limit=2)) == 2
    assert "2 references are what stands behind ####" in caplog.text


def test_turns_by_member_are_read_too(tmp_path: Path) -> None:
    row = {"prompt": {"role": ["system", "user"], "content": ["Answer briefly.", "What is 2+3?"]}, "answer": "5"}
    (query,) = load_queries(write(tmp_path, [row]))
    assert (query.problem, query.turns) == ("What is 2+3?", (SYSTEM,))


def test_a_reward_function_gets_the_reference_as_the_row_has_it(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "24?", "reward_model": {"ground_truth": {"target": 24, "numbers": [4, 6]}}, "x": 1},
        {"prompt": "Prove it.", "reward_model": {"ground_truth": "proof"}, "x": 2},
        {"prompt": "Free text.", "reward_model": {"ground_truth": None}, "x": 3},
        {"prompt": "No reward model.", "x": 4},
        {"prompt": "Capital?", "reward_model": {"ground_truth": ["Paris", "City of Paris"]}, "x": 5},
        {"prompt": "Capital?", "reward_model": {"ground_truth": ' ["Paris", "City of Paris"]'}, "x": 6},
        {"prompt": "Half?", "reward_model": {"ground_truth": '["1/2", "0.5"]'}, "x": 7},
    ]
    aliases = '["Paris", "City of Paris"]'
    table, _ = load_table(parse_source(write(tmp_path, rows)), Selection({"target": "x"}, whole_row=True))
    texts = ['{"target": 24, "numbers": [4, 6]}', "proof", "", "", aliases, aliases, '["1/2", "0.5"]']
    assert [query.answer for query in table.values()] == texts
    nested = Selection({"problem": "prompt", "style": "reward_model.ground_truth.target"}, whole_row=True)
    table, _ = load_table(parse_source(write(tmp_path, rows[:1])), nested)
    assert [query.info for query in table.values()] == [{"style": 24}]
