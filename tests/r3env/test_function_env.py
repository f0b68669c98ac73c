"""`r3env/Function-v0`: what a reward function gets, what its return means, and what it cannot break."""

import inspect as python_inspect
import json
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import r3env
from r3env.child_processes.subprocess_scorer import WAITED
from r3env.core import Reason, Verdict
from r3env.data.sources import DataError
from r3env.envs.function import FunctionEnv
from r3env.envs.function_calls import Opinion, combine, read
from r3env.envs.function_loading import labels
from r3env.inspect import main as inspect
from r3env.registry import OptionError, make_env

ROWS: list[dict[str, Any]] = [
    {"problem": "1+1?", "answer": "2", "tolerance": 0.5, "tags": ["sum", "easy"]},
    {"problem": "2+2?", "answer": "4", "tolerance": 1.5, "tags": []},
]
FUNCTIONS = """
import functools, os, sys, time
import numpy as np
from r3env.core import Reason, Verdict

def everything(**row):
    return Verdict(True, Reason.EQUAL, feedback=repr(sorted(row.items())))

def named(problem, response, answer, uid, level, tolerance, tags):
    assert (problem, response, answer, level, tolerance, tags) == ("1+1?", "r", "2", "", 0.5, ["sum", "easy"]), locals()
    return 0.25

def with_default(response, tolerance=7.0, absent=3):
    return tolerance + absent

def by_keyword_only(*, response):
    return True

async def awaited(response):
    return 0.75

class Callable:
    def __call__(self, response):
        return len(response)

instance = Callable()

part = functools.partial(lambda response, bonus, tolerance: tolerance + bonus, bonus=0.5)

class Awaited:
    def __init__(self):
        self.pool = [0.5]
    async def __call__(self, response):
        return self.pool[0]

class TakesNothing:
    def __call__(self):
        return 1.0

class TakesArguments:
    def __init__(self, path):
        pass
    def __call__(self, response):
        return 1.0

def value_of(response):
    return eval(response)

def trl_value_of(completions, **kwargs):
    return eval(completions[0])

def trl_with_messages(completions: list[list[dict[str, str]]], prompts, answer, tolerance, log_extra, log_metric):
    log_extra("column", [1]); log_metric("name", 1.0)
    assert prompts == [[{"role": "user", "content": "1+1?"}]]
    assert completions == [[{"role": "assistant", "content": "r"}]] and answer == ["2"] and tolerance == [0.5]
    return [0.5]

def trl_with_text(prompts, completions, **kwargs):
    assert prompts == ["1+1?"] and completions == ["r"] and kwargs["tags"] == [["sum", "easy"]], kwargs
    assert kwargs["problem"] == ["1+1?"] and "response" not in kwargs
    return [0.5]

def trl_of_a_chat(completions, **kwargs):
    return [float(len(completion[0]["content"])) for completion in completions]

def hangs(response):
    while True:
        pass

def sleeps(response):
    time.sleep(3600)

def exits(response):
    os._exit(0)

def leaves(response):
    sys.exit("enough")

def fills_memory(response):
    return len(bytearray(8 << 30))

def prints(response):
    print("[1.0]"); print("noise", file=sys.stderr, flush=True); os.write(1, b"more"); os.system("echo noise")
    return 0.5

def poisons(response):
    sys.modules["r3env.envs.function_calls"].read = None
    globals()["left"] = 1
    return 0.5

def is_poisoned(response):
    return float("left" in globals())

def nothing_to_say(response):
    return None

def misses(response, absent):
    return 1.0

def by_position(response, /):
    return 1.0

def takes_neither(completion):
    return 1.0

def from_trainer(completions, completion_ids):
    return [1.0]

number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


@pytest.fixture
def judge(folder: Path) -> Any:
    """Verdict of a function in the file on a response to the first problem."""

    def judge(function: str, response: str = "r", **options: Any) -> Verdict:
        env = make(folder, function, **options)
        return env.verify(env.query(env.uids[0]), response)

    return judge


def make(folder: Path, *functions: str, data: str = "rows.jsonl", **options: Any) -> FunctionEnv:
    names = [f"{folder}/functions.py:{function}" for function in functions]
    reward = names[0] if len(names) == 1 else names
    return FunctionEnv(str(folder / data), reward=reward, **{"grading_timeout_s": 30.0, **options})


# What it gets.


def test_a_function_gets_what_it_names_of_problem_response_answer_and_the_columns(judge: Any) -> None:
    verdict = judge("named")
    assert verdict.reason is Reason.DIFFERENT and verdict.score == 0.25


def test_with_kwargs_it_gets_everything(judge: Any, folder: Path) -> None:
    uid = make(folder, "everything").uids[0]
    row = {**ROWS[0], "response": "r", "uid": uid, "level": ""}
    assert judge("everything").feedback == repr(sorted(row.items()))


def test_an_argument_with_a_default_takes_the_column_if_there_is_one(judge: Any) -> None:
    assert judge("with_default").score == 3.5


@pytest.mark.parametrize(
    ("function", "score"),
    [("by_keyword_only", 1.0), ("awaited", 0.75), ("instance", 1.0), ("part", 1.0), ("Awaited", 0.5)],
)
def test_any_callable_by_its_name(judge: Any, function: str, score: float) -> None:
    assert judge(function).score == score


def test_a_class_that_cannot_be_made_is_an_error_that_says_so(judge: Any) -> None:
    assert "TakesArguments: making it fails: TypeError" in judge("TakesArguments").feedback


def test_a_column_of_another_name_is_mapped(tmp_path: Path, folder: Path) -> None:
    row = {"question": "1+1?", "gold": "2", "slack": 0.5, "labels": ["sum", "easy"], "problem_id": 3}
    (tmp_path / "other.jsonl").write_text(json.dumps(row))
    columns = {"problem": "question", "answer": "gold", "tolerance": "slack", "tags": "labels"}
    env = make(folder, "named", data=str(tmp_path / "other.jsonl"), columns=columns)
    assert env.verify(env.query(env.uids[0]), "r").score == 0.25


def test_a_row_without_an_answer_has_an_empty_one_and_rows_differ_by_what_the_function_gets(
    tmp_path: Path, folder: Path
) -> None:
    rows = [{"problem": "Write a story.", "style": style} for style in ("sad", "short", "sad")]
    (tmp_path / "stories.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env = make(folder, "everything", data=str(tmp_path / "stories.jsonl"))
    queries = list(env.queries.values())
    assert [(query.answer, query.info["style"]) for query in queries] == [("", "sad"), ("", "short")]
    assert len(make(folder, "value_of", data=str(tmp_path / "stories.jsonl")).uids) == 1


def test_columns_that_are_no_plain_data_stay_out_unless_they_are_asked_for(tmp_path: Path, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"problem": "p", "answer": "a", "absent": b"bytes", "n": 1}]), path)
    env = make(folder, "everything", data=str(path))
    assert env.query(env.uids[0]).info == {"n": 1}
    with pytest.raises(DataError, match="'absent' is not plain data"):
        make(folder, "misses", data=str(path)).load_queries()


# What it returns.


@pytest.mark.parametrize(
    ("returned", "correct", "reward"),
    [
        ("True", True, 1.0),
        ("False", False, 0.0),
        ("1", True, 1.0),
        ("0.99", False, 0.99),
        ("0.0", False, 0.0),
        ("np.array(0.5)", False, 0.5),
        ("-2.5", False, -2.5),
        ("7", True, 7.0),
        ("np.float32(0.5)", False, 0.5),
        ("np.bool_(True)", True, 1.0),
        ("Verdict(True, Reason.EQUAL)", True, 1.0),
        ("Verdict(True, Reason.EQUAL, 0.3)", True, 0.3),
        ("Verdict(False, Reason.NO_ANSWER, 0.1, 'no box')", False, 0.1),
    ],
)
def test_a_number_a_bool_or_a_verdict(folder: Path, returned: str, correct: bool, reward: float) -> None:
    env = make(folder, "value_of")
    env.reset(options={"uid": env.uids[0]})
    _, paid, terminated, truncated, info = env.step(returned)
    assert (paid, info["correct"], terminated, truncated) == (reward, correct, True, False)
    assert info["verdict"] == ("no_answer" if "NO_ANSWER" in returned else "equal" if correct else "different")
    assert info.get("feedback", "") == ("no box" if "no box" in returned else "")


def test_a_number_is_correct_from_correct_at_on(judge: Any) -> None:
    assert judge("value_of", "0.5", correct_at=0.5).correct
    assert judge("value_of", "0.1 + 0.7", correct_at=0.8).correct, "it is a little less, by rounding"
    assert not judge("value_of", "0.49", correct_at=0.5).correct
    assert not judge("value_of", "False", correct_at=-1).correct, "a bool says it itself"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("float('nan')", "ValueError: returned nan, which is not finite"),
        ("float('inf')", "ValueError: returned inf, which is not finite"),
        ("10**400", "OverflowError"),
        ("'1'", "TypeError: returned a str; return a number"),
        ("[1.0]", "TypeError: returned a list; return a number"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("{}['key']", "KeyError: 'key'"),
    ],
)
def test_what_is_none_of_these_or_raised_is_an_error_with_its_reason(judge: Any, returned: str, said: str) -> None:
    verdict = judge("value_of", returned)
    assert not verdict.correct and verdict.reason is Reason.ERROR and not verdict.trusted
    assert said in verdict.feedback and "functions.py:value_of" in verdict.feedback
    assert "function_calls.py" not in verdict.feedback


@pytest.mark.parametrize(("function", "returned"), [("value_of", "None"), ("trl_value_of", "[None]")])
def test_what_no_function_grades_is_neither_correct_nor_an_error(judge: Any, function: str, returned: str) -> None:
    verdict = judge(function, returned)
    assert verdict.reason is Reason.UNGRADED and not verdict.trusted and not verdict.correct
    assert verdict.feedback.endswith(f"functions.py:{function} returned None: there is no reward")


def test_an_exception_names_the_line_of_the_users_file(judge: Any) -> None:
    line = FUNCTIONS.splitlines().index('    sys.exit("enough")') + 1
    assert judge("leaves").feedback.endswith(f"SystemExit: enough (functions.py, line {line})")


def test_several_functions_are_added_by_their_weights(folder: Path) -> None:
    env = make(folder, "value_of", "awaited", weights=[2.0, 0.4])
    query = env.query(env.uids[0])
    assert env.verify(query, "0.25").score == pytest.approx(0.8)
    assert env.verify(query, "0.35").correct and env.verify(query, "True").correct
    unsure = make(folder, "nothing_to_say", "awaited")
    assert unsure.verify(query, "").score == 0.75, "None: a function that does not apply"


def test_what_each_function_returned_is_in_the_verdict_and_the_info_before_its_weight(folder: Path) -> None:
    env = make(folder, "value_of", "awaited", "nothing_to_say", weights=[2.0, 0.4, 1.0])
    uid = env.uids[0]
    assert env.verify(env.query(uid), "0.25").rewards == {"value_of": 0.25, "awaited": 0.75}
    env.reset(options={"uid": uid})
    assert env.step("True")[4]["rewards"] == {"value_of": 1.0, "awaited": 0.75}


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["rewards:right", "rewards:brief"], ("right", "brief")),
        (["rewards:score", "pkg.other:score", "/x/mine.py:score"], ("rewards.score", "pkg.other.score", "mine.score")),
        (["/x/mine.py:score", "/y/mine.py:score"], ("mine.score_1", "mine.score_2")),
    ],
)
def test_functions_have_short_names_that_differ(names: list[str], short: tuple[str, ...]) -> None:
    assert labels(names) == short


def test_those_that_say_what_is_correct_decide_and_the_numbers_only_pay() -> None:
    right, wrong, some = read(True), read(False), read(5.0)
    assert right and wrong and some
    assert combine([(1.0, right), (0.1, some)], 1.0) == Verdict(True, Reason.EQUAL, 1.5)
    assert combine([(1.0, wrong), (1.0, some)], 1.0) == Verdict(False, Reason.DIFFERENT, 5.0)
    assert not combine([(1.0, wrong), (1.0, right)], 1.0).correct
    broken = Opinion(0.0, False, Reason.TIMEOUT, "the judge does not answer")
    assert combine([(1.0, right), (1.0, broken)], 1.0) == Verdict(
        False, Reason.TIMEOUT, None, "the judge does not answer"
    )


# TRL's signature.


def test_completions_are_messages_or_text_as_the_annotation_says(judge: Any) -> None:
    assert judge("trl_with_messages").score == 0.5
    assert judge("trl_with_text").score == 0.5


def test_without_an_annotation_they_are_text_and_the_error_says_what_to_set(judge: Any) -> None:
    verdict = judge("trl_of_a_chat")
    assert verdict.reason is Reason.ERROR and verdict.feedback.endswith("set environment.options.messages=true")
    assert judge("trl_of_a_chat", "12345", messages=True).score == 5.0


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("[1.0, 0.0]", "returned 2 rewards for 1 completion"),
        ("1.0", "as it takes `completions`, it must return a list"),
        ("[float('nan')]", "not finite"),
    ],
)
def test_what_trl_would_not_train_on_is_an_error(judge: Any, returned: str, said: str) -> None:
    verdict = judge("trl_value_of", returned)
    assert verdict.reason is Reason.ERROR and said in verdict.feedback


def test_a_list_of_one_number_bool_or_array(judge: Any) -> None:
    assert judge("trl_value_of", "[0.5]").score == 0.5
    assert judge("trl_value_of", "(True,)").correct
    assert judge("trl_value_of", "np.array([0.25])").score == 0.25


# What it cannot break.


@pytest.mark.parametrize("function", ["hangs", "sleeps"])
def test_a_function_that_hangs_is_a_timeout_and_the_next_call_is_answered(judge: Any, function: str) -> None:
    started = time.monotonic()
    verdict = judge(function, grading_timeout_s=1.0)
    assert verdict.reason is Reason.TIMEOUT and time.monotonic() - started < 60
    assert judge("value_of", "0.5").score == 0.5


@pytest.mark.parametrize(
    ("function", "said"),
    [("exits", "the process died"), ("leaves", "SystemExit"), ("fills_memory", "MemoryError")],
)
def test_a_function_that_exits_or_fills_memory_is_an_error(judge: Any, function: str, said: str) -> None:
    verdict = judge(function)
    assert verdict.reason is Reason.ERROR and said in verdict.feedback
    assert judge("value_of", "0.5").score == 0.5


WORKS_IN_A_THREAD = """
import queue, threading
asked, answered = queue.Queue(), queue.Queue()

def work():
    while True:
        answered.put(asked.get())

threading.Thread(target=work, daemon=True).start()

def reward(response):
    asked.put(1.0)
    return answered.get()
"""


def test_a_call_that_waits_for_a_thread_that_its_fork_lacks_says_so(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "threaded.py").write_text(WORKS_IN_A_THREAD)
    env = FunctionEnv(str(folder / "rows.jsonl"), reward=f"{tmp_path}/threaded.py:reward", grading_timeout_s=3.0)
    verdict = env.verify(env.query(env.uids[0]), "1")
    assert verdict.reason is Reason.TIMEOUT and verdict.feedback.endswith(WAITED)


STARTS_A_PROCESS = """
import subprocess, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()

def reward(response):
    return subprocess.run(["sleep", "60"]).returncode
"""


def test_a_call_that_has_started_a_process_is_not_said_to_wait_for_a_thread(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "starting.py").write_text(STARTS_A_PROCESS)
    env = FunctionEnv(str(folder / "rows.jsonl"), reward=f"{tmp_path}/starting.py:reward", grading_timeout_s=3.0)
    verdict = env.verify(env.query(env.uids[0]), "1")
    assert verdict.reason is Reason.TIMEOUT and WAITED not in verdict.feedback


def test_what_a_function_prints_goes_nowhere(judge: Any, capfd: Any) -> None:
    assert judge("prints").score == 0.5
    captured = capfd.readouterr()
    assert "noise" not in captured.out + captured.err


def test_what_a_function_changes_is_gone_at_the_next_call(judge: Any) -> None:
    assert judge("poisons").score == 0.5
    assert judge("is_poisoned").score == 0.0


def test_memory_that_imports_take_does_not_count(tmp_path: Path) -> None:
    """A call may add two gigabytes to whatever libraries have mapped."""
    source = "import mmap\nheld = mmap.mmap(-1, 5 << 30)\ndef reward(response):\n    return len(bytearray(1 << 20))\n"
    (tmp_path / "large.py").write_text(source)
    env = FunctionEnv(reward=f"{tmp_path}/large.py:reward", grading_timeout_s=30.0)
    assert env.verify(env.query(env.uids[0]), "").score == 1 << 20


def test_the_function_runs_in_no_process_of_ours(judge: Any) -> None:
    assert judge("value_of", "os.getpid()").score != os.getpid()
    assert not [name for name in __import__("sys").modules if "functions" in name and name.startswith("reward_")]


# What is known before a run.


@pytest.mark.parametrize(
    ("reward", "line"),
    [
        (None, "reward: names no function; fix: environment.options.reward=my_module:my_function"),
        ([], "reward: names no function"),
        ({"a:b": 1}, "is not of the form module:function"),
        (7, "reward: 7 is not of the form module:function or path/to/file.py:function"),
        ("my_module", "reward: 'my_module' is not of the form module:function"),
        ("my_module:1+1", "is not of the form"),
        ("no_such_module_here:f", "there is no module no_such_module_here; fix: start from the folder that holds it"),
        ("json.no_such_part:f", "there is no module json.no_such_part"),
        ("no_such_file.py:f", "no_such_file.py:f: there is no such file; fix: "),
        ("textwrap:dedent", "textwrap:dedent: takes neither `response` nor TRL's `completions`"),
        ("json:dumpz", "json has no dumpz; the nearest is 'dump"),
        ("json:JSONDecoder", "is a class, not a function"),
        ("FILE:TakesNothing", "takes neither `response` nor TRL's `completions`"),
        ("FILE:number", "is a int, not a function"),
        ("FILE:by_position", "takes arguments by position only; fix: leave out the `/`"),
        ("FILE:takes_neither", "takes neither `response` nor TRL's `completions`"),
    ],
)
def test_a_function_that_cannot_be_used_is_one_line(folder: Path, reward: Any, line: str) -> None:
    reward = reward.replace("FILE", f"{folder}/functions.py") if isinstance(reward, str) else reward
    with pytest.raises(OptionError) as raised:
        FunctionEnv(reward=reward)
    assert str(raised.value).startswith("reward: ") and line in str(raised.value)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import no_such_library", "importing it fails: ModuleNotFoundError: No module named 'no_such_library'"),
        ("1/0", "importing it fails: ZeroDivisionError: division by zero (bad.py, line 1)"),
        ("import json\njson.loads('')", "Expecting value: line 1 column 1 (char 0) (bad.py, line 2)"),
        ("def f(:", "importing it fails: SyntaxError: invalid syntax"),
        ("import sys; sys.exit(3)", "importing it fails: SystemExit: 3"),
        ("import os; os._exit(3)", "importing ends the process"),
        ("open('nothing.txt')", "importing it fails: FileNotFoundError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(tmp_path: Path, source: str, line: str) -> None:
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(OptionError) as raised:
        FunctionEnv(reward=f"{tmp_path}/bad.py:f")
    assert line in str(raised.value)


def test_an_argument_that_no_column_gives_is_one_line(folder: Path) -> None:
    with pytest.raises(OptionError) as raised:
        make(folder, "misses").load_queries()
    assert "misses takes 'absent', which is neither one of problem, response, answer" in str(raised.value)
    assert f"nor a column of {folder}/rows.jsonl (row 1); fix: add the column" in str(raised.value)
    with pytest.raises(OptionError, match="takes 'completion_ids', which only TRL's trainer has"):
        make(folder, "from_trainer").load_queries()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"weights": [1.0, 2.0]}, "weights: must be one number for each of the 1 functions"),
        ({"weights": "1"}, "weights: must be one number"),
        ({"weights": [float("inf")]}, "weights: must be one number"),
        ({"correct_at": float("nan")}, "correct_at: must be a number"),
        ({"correct_at": "1"}, "correct_at: must be a number"),
        ({"messages": "yes"}, "messages: must be true, false or null"),
        ({"grading_timeout_s": 0}, "grading_timeout_s must be positive"),
    ],
)
def test_options_out_of_range_are_one_line(folder: Path, options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        make(folder, "value_of", **options)


def test_a_part_of_a_mixture_says_which_it_is(folder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"environments.own: r3env/Function-v0 cannot be made: reward: nothing:f: there"
    ):
        make_env(
            r3env.MIXTURE_ID, {"environments": {"own": {"id": r3env.FUNCTION_ID, "options": {"reward": "nothing:f"}}}}
        )


# An environment like the others.


@pytest.mark.filterwarnings("ignore:.*not having a spec")
def test_made_by_id_and_found_in_order(folder: Path) -> None:
    env = gymnasium.make(r3env.FUNCTION_ID, reward=f"{folder}/functions.py:prints", data=str(folder / "rows.jsonl"))
    check_env(env.unwrapped)


def test_its_reflection_repeats_the_instruction_and_names_no_box(folder: Path) -> None:
    env = make(folder, "value_of", instruction="Answer with a number.", max_turns=2)
    first, _ = env.reset(options={"uid": env.uids[0]})
    again, *_ = env.step("0.5")
    assert (
        first == "1+1?\n\nAnswer with a number." and again.endswith("\nAnswer with a number.") and "boxed" not in again
    )


def test_environments_of_a_process_share_their_problems(folder: Path) -> None:
    assert make(folder, "value_of").queries is make(folder, "value_of").queries
    assert make(folder, "value_of").queries is not make(folder, "everything").queries


def test_inspect_shows_reward_and_feedback(folder: Path, capsys: Any) -> None:
    command = ["--env", r3env.FUNCTION_ID, "--n", "1", "--answer", "1/0"]
    assert inspect([*command, "--option", f"reward={folder}/functions.py:value_of"]) == 0
    told = capsys.readouterr().out
    assert "<<< error correct=False reward=0 (the end)\nfeedback: " in told and "ZeroDivisionError" in told


def test_a_module_is_found_where_python_finds_it(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "found_by_its_path.py").write_text("def reward(response):\n    return 0.5\n")
    with pytest.raises(OptionError, match="no module found_by_its_path"):
        FunctionEnv(reward="found_by_its_path:reward")
    monkeypatch.syspath_prepend(tmp_path)
    env = FunctionEnv(reward="found_by_its_path:reward")
    assert env.verify(env.query(env.uids[0]), "").score == 0.5


def test_a_file_is_found_from_the_folder_of_the_process(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "near.py").write_text("from neighbor import half\ndef reward(response):\n    return half\n")
    (tmp_path / "neighbor.py").write_text("half = 0.5")
    monkeypatch.chdir(tmp_path)
    env = FunctionEnv(reward="near.py:reward")
    assert env.verify(env.query(env.uids[0]), "").score == 0.5


def test_every_argument_is_described() -> None:
    described = python_inspect.getdoc(FunctionEnv.__init__) or ""
    for name in ("reward", "weights", "correct_at", "messages"):
        assert f"    {name}: " in described
