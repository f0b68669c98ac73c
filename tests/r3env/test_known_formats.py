"""The columns of data sets and trainers that are read without a setting, on made-up rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from r3env.data.loading import Selection, load_queries, load_table
from r3env.data.sources import DataError, parse_source
from r3env.envs.choice import ChoiceEnv
from r3env.envs.math import MathEnv

P, A = "What is 2+3?", "5"
TURN = [{"role": "user", "content": P}]
WORKED = "We add, so it is \\boxed{5}."

FORMATS: dict[str, dict[str, Any]] = {
    "MATH-500": {"problem": P, "solution": WORKED, "answer": A, "subject": "Algebra", "level": 2, "unique_id": "t/1"},
    "MATH": {"problem": P, "level": "Level 1", "type": "Algebra", "solution": WORKED},
    "AIME 2024, another copy": {"ID": "2024-I-1", "Problem": P, "Solution": WORKED, "Answer": 5},
    "AIME 2025": {"question": P, "answer": A},
    "HMMT of MathArena": {"problem_idx": 1, "problem": P, "answer": A, "problem_type": ["Algebra"]},
    "BRUMO of MathArena": {"problem_idx": 1, "problem": P, "answer": 5, "source": "x"},
    "DAPO-Math-17k": {
        "data_source": "math_dapo",
        "prompt": TURN,
        "ability": "MATH",
        "reward_model": {"ground_truth": A, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b"},
    },
    "DAPO-Math-17k, processed": {"prompt": P, "solution": A, "data_source": "math_dapo", "source_prompt": TURN},
    "DeepScaleR": {"problem": P, "answer": A, "solution": WORKED},
    "NuminaMath-1.5": {"problem": P, "solution": WORKED, "answer": A, "problem_type": "Algebra", "synthetic": False},
    "NuminaMath-CoT": {"source": "x", "problem": P, "solution": WORKED, "messages": [*TURN, TURN[0]]},
    "Big-Math": {"problem": P, "answer": A, "source": "x", "domain": ["Math"], "llama8b_solve_rate": 0.5},
    "OpenR1-Math": {"problem": P, "solution": WORKED, "answer": A, "uuid": "u", "generations": ["x"], "messages": TURN},
    "Open-Reasoner-Zero": {
        "0": {"from": "human", "value": P},
        "1": {"from": "assistant", "ground_truth": {"value": A, "pass_at_n": 0.5}},
    },
    "Skywork-OR1": {
        "data_source": "x",
        "prompt": TURN,
        "ability": "math",
        "reward_model": {"ground_truth": '["5"]', "style": "rule"},
        "extra_info": {"index": 0, "model_difficulty": {"x": 3}},
    },
    "SimpleRL-Zoo": {
        "data_source": "simplelr_qwen",
        "prompt": TURN,
        "ability": "math",
        "reward_model": {"ground_truth": A, "style": "rule"},
        "extra_info": {"answer": A, "question": P, "split": "train"},
        "question": "the bare question",
        "gt_answer": A,
    },
    "verl's GSM8K": {
        "data_source": "openai/gsm8k",
        "prompt": TURN,
        "reward_model": {"style": "rule", "ground_truth": A},
        "extra_info": {"answer": "2+3 = 5\n#### 5", "question": P, "split": "train", "index": 0},
    },
    "MultiArith": {"question": P, "final_ans": A},
    "MAWPS": {"input": P, "target": 5.0},
    "TRL": {"prompt": TURN, "solution": "$5$"},
    "TRL, prompts of text": {"prompt": P, "answer": 5},
    "AReaL": {"query_id": "q", "prompt": P, "solutions": ["\\boxed{5}"]},
    "slime": {"prompt": TURN, "label": A},
    "slime, prompts of text": {"prompt": P, "label": 5},
    "OpenRLHF": {"input": P, "label": A},
    "OpenRLHF, conversations": {"input": TURN, "label": A, "datasource": "x"},
    "OpenRLHF, a column of its own": {"context_messages": TURN, "label": A},
    "verl, flattened": {"prompt": P, "reward_model.ground_truth": A, "reward_model.style": "rule"},
    "NeMo-RL": {"problem": P, "expected_answer": A},
    "OpenMathInstruct-2": {"problem": P, "generated_solution": WORKED, "expected_answer": A, "problem_source": "x"},
    "prime-rl's verifiers": {"question": P, "answer": A, "info": {"level": 1}},
    "verifiers, conversations": {"prompt": TURN, "question": P, "answer": A, "info": "{}", "task": "x"},
    "SYNTHETIC-1": {"prompt": P, "verification_info": '{"ground_truth": "5"}', "gold_standard_solution": WORKED},
    "OLMo's RLVR": {"messages": TURN, "ground_truth": A, "dataset": "gsm8k"},
    "OlympiadBench": {"question": P, "final_answer": ["$5$"], "answer_type": "Numerical", "is_multiple_answer": False},
    "simple-evals": {"Question": P, "Answer": A},
    "ASDiv": {"body": "", "question": P, "answer": "5", "formula": "2+3=5", "solution_type": "Addition"},
    "DeepMath": {"question": P, "final_answer": A, "difficulty": 4.5, "topic": "x", "r1_solution_1": WORKED},
    "POLARIS": {"problem": P, "answer": A, "difficulty": "7/8"},
    "LIMR": {"prompt": P, "answer": A},
    "LIMO": {"question": P, "solution": WORKED, "answer": A},
    "MGSM": {"question": P, "answer": None, "answer_number": 5, "equation_solution": None},
    "TheoremQA": {"Question": P, "Answer": "5.0", "Answer_type": "integer", "Picture": None},
    "CARP": {"content": P, "answer": A},
    "CMATH": {"question": P, "golden": "5", "grade": 1},
    "Eurus-2-RL": {"data_source": "x", "prompt": TURN, "ability": "math", "reward_model": {"ground_truth": A}},
    "NeMo-Gym": {"responses_create_params": {"input": TURN}, "expected_answer": A},
    "Tülu's RLVR, lists": {"messages": TURN, "ground_truth": ["5"], "dataset": ["gsm8k"]},
    "JSON text in CSV": {"prompt": json.dumps(TURN), "answer": A},
}


def write(folder: Path, row: dict[str, Any]) -> str:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return str(folder / "rows.jsonl")


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_of_a_known_format_is_a_query_that_is_paid(tmp_path: Path, name: str) -> None:
    env = MathEnv(write(tmp_path, FORMATS[name]))
    (uid,) = env.uids
    assert (env.query(uid).problem, env.query(uid).turns) == (P, ())
    env.reset(options={"uid": uid})
    assert env.step("\\boxed{5}")[1] == 1.0
    env.reset(options={"uid": uid})
    assert env.step("\\boxed{6}")[1] == 0.0


OPTIONS = ["4", "5", "6"]
LABELED = {"text": OPTIONS, "label": ["1", "2", "3"]}
CHOICES: dict[str, dict[str, Any]] = {
    "MMLU-Pro": {"question_id": 1, "question": P, "options": OPTIONS, "answer": "B", "answer_index": 1},
    "AQuA": {"question": P, "options": ["A)4", "B)5", "C)6"], "rationale": "2+3", "correct": "B"},
    "MMLU": {"question": P, "subject": "arithmetic", "choices": OPTIONS, "answer": 1},
    "MMLU in CSV": {"question": P, "subject": "arithmetic", "choices": "['4', '5', '6']", "answer": "1"},
    "MMLU, options in columns": {"Question": P, "A": "4", "B": "5", "C": "6", "Answer": "B", "Subject": "arithmetic"},
    "C-Eval": {"id": 0, "question": P, "A": "4", "B": "5", "C": "6", "D": None, "answer": "B", "explanation": ""},
    "MMLU-Pro in CSV": {"question": P, "options": json.dumps(OPTIONS), "answer": "B", "answer_index": "1"},
    "RACE": {"article": "", "question": P, "options": OPTIONS, "answer": "B"},
    "MedQA": {"question": P, "options": {"A": "4", "B": "5", "C": "6"}, "answer": "5", "answer_idx": "B"},
    "MedQA in a table": {"question": P, "options": {"A": "4", "B": "5", "C": "6", "D": None}, "answer": "B"},
    "options and the place of one": {
        "question": P,
        "options": ["(A) 4", "(B) 5", "(C) 6"],
        "answer": 1,
        "context": None,
    },
    "options and a place, in CSV": {"question": P, "options": "['4', '5', '6']", "answer": "1"},
    "options in columns, and the text of one": {"question": P, "A": "4", "B": "5", "C": "6", "D": " ", "answer": "5"},
    "labels and texts": {"question": P, "choices": LABELED, "answer": "2"},
    "labels and texts in a table": {"question": P, "options": json.dumps(LABELED), "answer": 2},
    "objects of a label and a text": {
        "question": P,
        "choices": [{"label": label, "text": text} for label, text in zip("ABC", OPTIONS, strict=True)],
        "answerKey": "B",
    },
    "a letter in small": {"question": P, "options": OPTIONS, "answer": "(b)"},
    "options by small letters": {"question": P, "options": {"a": "4", "b": "5", "c": "6"}, "answer": "B"},
    "options by names": {"question": P, "options": {"one": "4", "two": "5", "three": "6"}, "answer": "B"},
    "options by number": {"question": P, "options": {"1": "4", "2": "5", "3": "6"}, "answer": "2"},
    "a place among numbers with a point": {"question": P, "choices": OPTIONS, "answer": 1.0},
    "the text of a choice": {"question": P, "choices": OPTIONS, "answer": "5"},
    "ARC": {"id": "1", "question": P, "choices": {"text": OPTIONS, "label": ["1", "2", "3"]}, "answerKey": "2"},
}


@pytest.mark.parametrize("name", CHOICES)
def test_questions_with_options_are_posed_with_them(tmp_path: Path, name: str) -> None:
    (query,) = load_queries(write(tmp_path, CHOICES[name]))
    assert (query.problem, query.answer) == (f"{P}\n\nA) 4\nB) 5\nC) 6", "B")
    env = ChoiceEnv(write(tmp_path, CHOICES[name]))
    env.reset(seed=0)
    assert env.step("Answer: B")[1] == 1.0


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"problem": P, "options": OPTIONS, "answer": "B"}, {}),
        ({"prompt": P, "choices": {"label": ["1", "2", "3"], "text": OPTIONS}, "answer": "2"}, {}),
        ({"Question": P, "Options": json.dumps(OPTIONS), "Answer": "(b)"}, {}),
        (
            {"stem": P, "choices": {"label": ["A", "B", "C"], "text": OPTIONS}, "key": "B"},
            {"problem": "stem", "answer": "key"},
        ),
    ],
)
def test_options_beside_any_problem_are_posed_where_the_answer_is_a_label(
    tmp_path: Path, row: dict[str, Any], columns: dict[str, str]
) -> None:
    (query,) = load_queries(write(tmp_path, row), columns=columns)
    assert (query.problem, query.answer) == (f"{P}\n\nA) 4\nB) 5\nC) 6", "B")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"problem": P, "options": OPTIONS, "answer": "5"}, True),  # which mathematics is asked without
        ({"problem": P, "options": ["4", "A", "5"], "answer": "A"}, True),  # the text of another option
        ({"problem": P, "options": "a ) 4 , b ) 5", "answer": "b"}, True),
        ({"problem": P, "options": ["4", "5", None], "answer": "B"}, True),
        ({"problem": P, "options": {"shuffle": True, "seed": 7}, "answer": "B"}, True),
        ({"problem": P, "options": {"label": 1, "text": ["4"]}, "answer": "B"}, True),
        ({"problem": "1234 mod 5?", "options": ["1", "2", "3"], "answer": "7"}, True),
        ({"problem": f"{P} (A) 4 (B) 5 (C) 6", "options": OPTIONS, "answer": "B"}, False),
        ({"problem": f"{P} A\uff0e4. B\uff0e5. C\uff0e6.", "options": ["4. ", "5. ", "6. "], "answer": "B"}, False),
        ({"problem": f"{P} **a** 4; **b** 5; **c** 6", "options": ["four", "five", "six"], "answer": "B"}, False),
        (
            {
                "problem": f"{P} 1) a cat 2) a dog",
                "options": {"label": ["1", "2"], "text": ["cats", "dogs"]},
                "answer": "2",
            },
            False,
        ),
        ({"problem": f"{P} Of 4, 5 and 6", "choices": OPTIONS, "answer": "5"}, False),
        ({"problem": P, "choices": [{"message": "It is 5."}, {"message": "It is 6."}], "answer": "5"}, False),
        ({"problem": P, "options": [], "answer": "5"}, False),
        ({"problem": P, "options": "{[1]: 2}", "answer": "5"}, True),
    ],
)
def test_other_options_are_not_posed_and_named_where_they_are_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: dict[str, Any], named: bool
) -> None:
    (query,) = load_queries(write(tmp_path, row))
    assert (query.problem, query.answer) == (row["problem"], row["answer"])
    assert ("1 problems are without the text of their column 'options'" in caplog.text) == named


def test_marks_of_some_letters_are_no_options(tmp_path: Path) -> None:
    row = {"problem": "It leaves point A. It reaches point B. How far?", "options": OPTIONS, "answer": "C"}
    assert load_queries(write(tmp_path, row))[0].problem.endswith("\n\nA) 4\nB) 5\nC) 6")


def test_an_options_text_counts_before_a_letter_in_small(tmp_path: Path) -> None:
    row = {"question": P, "options": ["b", "a"], "answer": "a"}
    assert load_queries(write(tmp_path, row))[0].answer == "B"


@pytest.mark.parametrize(("answer", "letter"), [(1, "B"), ("1", "C"), (5, "D"), ("B", "B")])
def test_a_number_is_a_place_among_texts(tmp_path: Path, answer: Any, letter: str) -> None:
    row = {"question": P, "options": ["0", "2", "1", "5"], "answer": answer}
    assert load_queries(write(tmp_path, row))[0].answer == letter


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"options": {"A": "4", "B": None, "C": "5", "D": "6"}, "answer": "C"}, "'options' holds an option that is null"),
    ({"options": [["4"], ["5"]], "answer": "A"}, "'options' holds an option that is a list"),
    ({"options": list(range(30)), "answer": 28}, "'options' holds 30 options; fix: make it a list of 2 to 26 texts"),
    ({"choices": {"text": OPTIONS, "label": ["A", "B"]}, "answerKey": "B"}, "'choices' holds 2 labels of 3 texts"),
    ({"choices": OPTIONS, "answerKey": "1"}, "'answerKey' is '1', which names no single one of the 3 options"),
    ({"choices": OPTIONS, "answer": 3}, "'answer' is 3, which names no single one of the 3 options; fix: make it the"),
    ({"choices": OPTIONS, "answer": "D"}, "'answer' is 'D', which"),
    ({"choices": ["yes", "no"], "answer": True}, "'answer' is True, which"),
    ({"options": ["4", "4"], "answer": "4"}, "'answer' is '4', which"),
    ({"options": {"A": "4", "C": "5"}, "answer": "B"}, "'answer' is 'B', which"),
    ({"options": OPTIONS, "correct": "E"}, "'correct' is 'E', which"),
    ({"A": "4", "B": "5", "C": None, "answer": "C"}, "'answer' is 'C', which"),
]


@pytest.mark.parametrize(("row", "line"), BAD_OPTIONS)
def test_options_that_cannot_be_read_are_left_out_and_the_first_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: dict[str, Any], line: str
) -> None:
    with pytest.raises(DataError, match="row 1: ") as caught:
        load_queries(write(tmp_path, {"question": P, **row}))
    assert line in str(caught.value) and "; fix: " in str(caught.value)
    options = {name: OPTIONS if name in ("options", "choices") else "5" for name in row}
    right = {"answer": "B", "correct": "B", "answerKey": "B"}
    rows = [{"question": P, **options, **{name: right[name] for name in row if name in right}}, {"question": P, **row}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(load_queries(str(tmp_path / "rows.jsonl"))) == 1
    assert "1 queries from 2 rows (1 unusable left out)" in caplog.text and f"row 2: {line}" in caplog.text


@pytest.mark.parametrize("answer", ["", " ", None])
def test_a_row_without_an_answer_is_not_the_one_that_cannot_be_read(tmp_path: Path, answer: str | None) -> None:
    rows = [{"question": P, "options": OPTIONS, "answer": each} for each in (answer, "zz")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match="row 2: 'answer' is 'zz', which names") as caught:
        load_queries(str(tmp_path / "rows.jsonl"))
    assert "; of all rows: 0 queries from 2 rows (2 unusable left out)" in str(caught.value)


def test_a_function_gets_an_answer_that_names_several_options(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": P, "options": OPTIONS, "answer": ["A", "B"]})
    table, _ = load_table(parse_source(path), Selection(whole_row=True))
    (query,) = table.values()
    assert (query.problem, query.answer) == (f"{P}\n\nA) 4\nB) 5\nC) 6", '["A", "B"]')


def test_the_labels_of_options_say_which_is_which(tmp_path: Path) -> None:
    for options, letter in (({"B": "5", "A": "4", "C": "6"}, "A"), ({"A": "4", "C": "6", "B": "5"}, "C")):
        assert load_queries(write(tmp_path, {"question": P, "options": options, "answer": "B"}))[0].answer == letter


def test_the_four_options_of_gpqa_are_posed(tmp_path: Path) -> None:
    wrong = {f"Incorrect Answer {number}": str(number) for number in (1, 2, 3)}
    (query,) = load_queries(write(tmp_path, {"Question": P, "Correct Answer": "5", **wrong, "Record ID": "r"}))
    assert f"{query.answer}) 5" in query.problem and query.uid == "r"


def test_stories_and_tables_come_before_their_question(tmp_path: Path) -> None:
    asdiv = {"body": "Tim has 9 apples.", "question": "How many?", "answer": "9 (apples)"}
    assert load_queries(write(tmp_path, asdiv))[0].problem == "Tim has 9 apples. How many?"
    svamp = {"Body": "Tim has 9 apples", "Question": "How many?", "Answer": 9.0, "ID": "c-1"}
    assert load_queries(write(tmp_path, svamp))[0].problem == "Tim has 9 apples. How many?"
    boolq = {"question": "is it", "passage": "It is.", "answer": True}
    (query,) = load_queries(write(tmp_path, boolq))
    assert (query.problem, query.answer) == ("It is.\n\nis it", "True")
    for row in (
        {"question": "How many?", "context": "Tim has 9.", "answer": "9"},
        {"question": "How many?", "context": "Tim has 9.", "final_answer": ["9"], "id": 1},
        {"instruction": "Tim has 9.", "input": "How many?", "output": "9"},
    ):
        (query,) = load_queries(write(tmp_path, row))
        assert (query.problem, query.answer) == ("Tim has 9.\n\nHow many?", "9")
    assert load_queries(write(tmp_path, {"question": "q", "context": None, "answer": "9"}))[0].problem == "q"
    table = {"question": "How many?", "table": "a | 9", "table_title": "Apples", "choices": ["8", "9"], "answer": "9"}
    assert load_queries(write(tmp_path, table))[0].problem == "Apples\na | 9\n\nHow many? Choose from: 8, 9."


SQUAD = {"question": "How many?", "context": "Tim has 9.", "answers": {"text": ["9"], "answer_start": [8]}}
WITHOUT: list[tuple[dict[str, Any], str, dict[str, str]]] = [
    (SQUAD, "context", {"answer": "answers.text"}),
    ({"query": "How many?", "Passage": "Tim has 9.", "answer": "9"}, "Passage", {}),
    ({"prompt": TURN, "context": "Tim has 9.", "answer": "5"}, "context", {}),
    (
        {"question": "How many?", "context": {"title": ["Tim"], "sentences": [["He has 9."]]}, "answer": "9"},
        "context",
        {},
    ),
]


@pytest.mark.parametrize(("row", "column", "columns"), WITHOUT)
def test_a_problem_without_the_text_that_it_is_about_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: dict[str, Any], column: str, columns: dict[str, str]
) -> None:
    assert len(load_queries(write(tmp_path, row), columns=columns)) == 1
    assert f"1 problems are without the text of their column {column!r}; where they are about it, write" in caplog.text


@pytest.mark.parametrize(
    "row",
    [
        {"question": "How many?", "context": " Tim has 9.", "answer": "9"},
        {"problem": "Tim has 9.\n\nHow many?", "context": "Tim has 9.", "answer": "9"},
        {"prompt": [{"role": "system", "content": "Tim has 9."}, *TURN], "context": "Tim has 9.", "answer": "9"},
        {"problem": "How many?", "context": " ", "passage": None, "article": [], "answer": "9"},
    ],
)
def test_a_problem_with_its_text_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture, row: dict[str, Any]) -> None:
    assert len(load_queries(write(tmp_path, row))) == 1 and "are without the text" not in caplog.text


@pytest.mark.parametrize("solution", ["He has 4 and 5.\n4+5=<<4+5=9>>9\n#### 9", "#### 9", "4+5=<<4+5=9>>9 #### 9"])
def test_a_worked_solution_behind_a_text_ends_in_the_answer(tmp_path: Path, solution: str) -> None:
    for row in (
        {"instruction": "How many?", "input": None, "output": solution},
        {"question": "How many?", "context": "Tim has 9.", "answer": solution},
    ):
        assert load_queries(write(tmp_path, row))[0].answer == "9"


NULLS: list[dict[str, Any]] = [
    {"body": None, "question": "How many?", "answer": "9"},
    {"passage": None, "question": "is it", "answer": True},
    {"table": None, "question": "How many?", "answer": "9"},
    {"instruction": None, "input": "Tim has 9.", "output": "9"},
    {"question": "How many?", "choices": ["8", None], "answer": 0},
    {"question": None, "choices": ["8", "9"], "answer": 0},
    {"question": "How many?", "options": None, "correct": "A"},
    {"question": "How many?", "options": ["8", "9"], "answer": None},
    {"question": "How many?", "choices": {"text": ["8", "9"], "label": ["A", "B"]}, "answerKey": None},
]


@pytest.mark.parametrize("row", NULLS)
@pytest.mark.parametrize("null", [None, float("nan")])
def test_a_row_without_a_part_of_its_problem_is_left_out(tmp_path: Path, row: dict[str, Any], null: Any) -> None:
    lists = {"choices": ["8", "9"], "options": ["8", "9"]}
    complete = {name: lists.get(name, value or "It is 9.") for name, value in row.items()}
    complete |= {"answer": 1} if isinstance(row.get("choices", row.get("options")), list) else {}
    if isinstance(row.get("choices"), dict):
        complete |= {"choices": row["choices"], "answerKey": "B"}
    path = tmp_path / "rows.jsonl"
    rows = [complete, {name: null if value is None else value for name, value in row.items()}]
    path.write_text("\n".join(map(json.dumps, rows)))
    queries = load_queries(str(path))
    assert len(queries) == 1 and "None" not in queries[0].problem and "nan" not in queries[0].problem


@pytest.mark.parametrize("null", [None, float("nan")])
def test_an_empty_context_of_any_kind_is_left_out(tmp_path: Path, null: Any) -> None:
    alpaca = {"instruction": "q", "input": null, "output": "9"}
    for row in (alpaca, {"question": "q", "context": null, "answer": "9"}):
        assert load_queries(write(tmp_path, row))[0].problem == "q"


UNREADABLE: list[tuple[dict[str, Any], str]] = [
    ({"target": 24, "nums": [1, 2, 3]}, "no column 'problem'; fix: the nearest column is 'target', of target, nums; "),
    ({"target": 24, "nums": [1, 2, 3]}, "map it with columns.problem (environment.columns={problem: NAME})"),
    ({"question": P, "response": WORKED}, "no column 'answer'; fix: the nearest column is "),
    ({"question": P, "response": WORKED}, "map it with columns.answer (environment.columns={answer: NAME})"),
    (
        {"prompt": TURN, "reward_model": {"ground_truth": {"target": 24, "numbers": [1]}}},
        "'reward_model.ground_truth' holds an object of target, numbers; fix: map one of them: environment.columns="
        "{answer: reward_model.ground_truth.target}",
    ),
    ({"text": P}, "no column 'problem'; fix: the nearest column is 'text', of text; map it with columns.problem"),
]


@pytest.mark.parametrize(("row", "line"), UNREADABLE)
def test_other_columns_are_named_with_the_setting_to_write(tmp_path: Path, row: dict[str, Any], line: str) -> None:
    with pytest.raises(DataError) as caught:
        load_queries(write(tmp_path, row))
    assert line in str(caught.value)


def test_rows_that_are_lists_of_turns_are_read(tmp_path: Path) -> None:
    row = [{"from": "human", "value": P}, {"from": "assistant", "ground_truth": {"value": A, "pass_at_n": 0.5}}]
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    (query,) = load_queries(str(tmp_path / "rows.json"))
    assert (query.problem, query.answer) == (P, A)


def test_what_is_named_goes_before_what_is_known(tmp_path: Path) -> None:
    row = {"question": P, "prompt": TURN, "answer": A, "other": "7", "Body": "b", "Question": "q", "Answer": "8"}
    (query,) = load_queries(write(tmp_path, row), columns={"answer": "other"})
    assert (query.problem, query.answer) == (P, "7")


def test_our_own_columns_go_before_those_of_others(tmp_path: Path) -> None:
    row = {"problem": P, "answer": A, "prompt": [{"role": "system", "content": "s"}, *TURN], "question": "q"}
    (query,) = load_queries(write(tmp_path, {**row, "reward_model": {"ground_truth": "7"}}))
    assert (query.problem, query.answer, query.turns) == (P, A, ())
