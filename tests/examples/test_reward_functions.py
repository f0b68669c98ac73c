"""Training and evaluating with a function of one's own, named on the command line."""

import json
import logging

import pyarrow.parquet as pq
import pytest

from algorithms.evaluate import main as evaluate
from algorithms.train.main import main
from examples.rewards import boxed_answer, closeness, last_number, short

ROWS = [{"problem": f"{n}+1=?", "answer": str(n + 1), "tolerance": 4.0 + n} for n in range(1, 9)]
UNRELIABLE = """
import os, sys, time

def unreliable(response, uid):
    match int(uid):
        case 1:
            time.sleep(3600)
        case 2:
            os._exit(0)
        case 3:
            raise KeyError("no such unit")
        case 4:
            return len(bytearray(8 << 30))
    print("noise")
    return len(response) / 100

def broken(response):
    return undefined_name

def late(response):
    time.sleep(3600)
"""


@pytest.fixture
def function_run(small_run, tmp_path):
    """Settings of a run of two steps that a function rewards."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row | {"uid": str(n)}) + "\n" for n, row in enumerate(ROWS, start=1)))
    (tmp_path / "unreliable.py").write_text(UNRELIABLE)
    return ["environment.id=r3env/Function-v0", f"environment.data={data}", *small_run, "training.group_size=4"]


def rollouts_of(tmp_path):
    return pq.read_table(tmp_path / "run" / "rollouts").to_pylist()


def test_numbers_are_the_rewards_and_those_that_reach_correct_at_are_correct(
    function_run, metrics, tmp_path, ray_session
):
    options = ["environment.options.reward=examples.rewards:closeness", "environment.options.correct_at=0.6"]
    assert main("r3_grpo", [*function_run, *options]) == 0
    columns = {row["problem"]: row for row in ROWS}
    rollouts = [one for one in rollouts_of(tmp_path) if one["context"] == "plain" and not one["truncated"]]
    assert rollouts
    for one in rollouts:
        row = columns[next(problem for problem in columns if problem in one["prompt"])]
        expected = closeness(one["response"], row["answer"], row["tolerance"])
        assert one["outcome_reward"] == pytest.approx(expected, abs=1e-6) and one["correct"] == (expected >= 0.6)
    assert {one["outcome_reward"] for one in rollouts} - {0.0, 1.0}, "partial credit"
    solved = metrics()
    for step in solved:
        returned = []
        for one in (one for one in rollouts_of(tmp_path) if one["step"] == step["step"] and not one["replayed"]):
            row = columns[next(problem for problem in columns if problem in one["prompt"])]
            returned.append(closeness(one["response"], row["answer"], row["tolerance"]))
        assert step["reward/function/closeness"] == pytest.approx(sum(returned) / len(returned))
        groups = {}
        for one in rollouts_of(tmp_path):
            if one["step"] == step["step"] and not one["replayed"]:
                groups.setdefault(one["group"], []).append(one["correct"])
        assert step["groups/solve_all"] == pytest.approx(sum(map(all, groups.values())) / len(groups))
        assert step["groups/solve_none"] == pytest.approx(sum(not any(g) for g in groups.values()) / len(groups))


@pytest.mark.slow
def test_trls_signature_several_runners_ahead_of_the_updates_and_evaluated(
    function_run, metrics, tmp_path, ray_session, capsys
):
    reward = 'environment.options.reward=["examples.rewards:last_number", "examples.rewards:short"]'
    options = [reward, "environment.options.weights=[1.0, 0.5]", "environment.options.messages=false"]
    asynchronous = ["env_runners.num_env_runners=2", "training.max_off_policy_steps=1"]
    assert main("r3_grpo", [*function_run, *options, *asynchronous]) == 0
    assert [row["step"] for row in metrics()] == [1, 2]
    rollouts = [one for one in rollouts_of(tmp_path) if one["context"] == "plain" and not one["truncated"]]
    assert {one["step"] for one in rollouts} == {1, 2}
    answers = {row["problem"]: row["answer"] for row in ROWS}
    for one in rollouts:
        answer = answers[next(problem for problem in answers if problem in one["prompt"])]
        expected = last_number(one["response"], answer)
        assert one["correct"] == expected
        assert one["outcome_reward"] == pytest.approx(expected + 0.5 * short([one["response"]])[0])
    run = ["--model", str(tmp_path / "run"), "--data", f"own={tmp_path}/rows.jsonl", "--out", str(tmp_path / "out")]
    capsys.readouterr()
    assert evaluate(run) == 2
    assert "names code to run; fix: if you trust it, repeat" in capsys.readouterr().err
    assert evaluate([*run, reward]) == 0
    assert "pass@1" in capsys.readouterr().out


@pytest.mark.slow
def test_a_function_that_breaks_on_some_answers_is_counted_and_said_and_training_goes_on(
    function_run, metrics, tmp_path, ray_session, caplog
):
    options = [
        f"environment.options.reward={tmp_path}/unreliable.py:unreliable",
        "environment.grading_timeout_s=1",
        "training.queries_per_step=8",
        "evaluation.interval=0",
        "env_runners.max_failed_share=1",
    ]
    with caplog.at_level(logging.WARNING):
        assert main("r3_grpo", [*function_run, *options]) == 0
    for row in metrics():
        assert row["grading/timeouts"] >= 4.0 and row["grading/errors"] >= 12.0
        assert row["rollout/environment_errors"] == 0.0 and 0.3 < row["rollout/failed_share"] < 0.7
    assert not {one["uid"] for one in rollouts_of(tmp_path)} & {"1", "2", "3", "4"}
    for said in ("KeyError: 'no such unit' (unreliable.py, line 11)", "the process died", "MemoryError", "timeout"):
        assert said in caplog.text


def test_a_function_that_always_raises_ends_the_run_in_its_own_words(function_run, tmp_path, ray_session, capsys):
    assert main("r3_grpo", [*function_run, f"environment.options.reward={tmp_path}/unreliable.py:broken"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "NameError: name 'undefined_name' is not defined (unreliable.py, line 18)" in last
    assert "unreliable.py:broken" in last and "correct" in last and "environment.options.reward" in last


def test_a_function_that_always_raises_is_named_by_check_with_its_setting(function_run, tmp_path, capsys):
    assert (
        main("r3_grpo", [*function_run, f"environment.options.reward={tmp_path}/unreliable.py:broken", "--check"]) == 2
    )
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: environment.options.reward: every answer that was tried failed: ")
    assert "unreliable.py:broken: NameError: name 'undefined_name' is not defined (unreliable.py, line 18)" in last


@pytest.mark.slow
def test_a_function_that_always_runs_out_of_time_ends_the_run(function_run, tmp_path, ray_session, capsys):
    options = [f"environment.options.reward={tmp_path}/unreliable.py:late", "environment.grading_timeout_s=0.2"]
    assert main("r3_grpo", [*function_run, *options]) == 1
    *_, saved, last = capsys.readouterr().err.splitlines()
    assert "stopped by an error after step 1; resume with --resume" in saved
    assert last.startswith("error: every one of 24 episodes failed: the answer could not be graded: timeout")
    assert "unreliable.py:late took longer than 0.2 s (environment.grading_timeout_s)" in last
    assert "raise environment.grading_timeout_s" in last


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("reward=examples.reward:short", "environment.options.reward: examples.reward:short: there is no module"),
        ("reward=examples.rewards:shrt", "examples.rewards has no shrt; the nearest is 'short'"),
        ("reward=examples.sandbox:run_calls", "takes neither `response` nor TRL's `completions`"),
        ("rewards=examples.rewards:short", "takes no argument rewards; fix: leave it out"),
        ("weights=[1]", "environment.options.reward: names no function"),
    ],
)
def test_a_function_that_cannot_be_used_is_one_line_of_check(function_run, capsys, option, line):
    assert main("r3_grpo", [*function_run, f"environment.options.{option}", "--check"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: environment.options.") and line in last


def test_an_argument_that_no_column_gives_is_one_line_of_check(function_run, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def reward(response, unit):\n    return 1.0\n")
    option = f"environment.options.reward={tmp_path}/mine.py:reward"
    assert main("r3_grpo", [*function_run, option, "--check"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: environment.options.reward: {tmp_path}/mine.py:reward takes 'unit'")


def test_the_examples_pay_for_what_they_say():
    assert last_number("1 + 1 = 2", "2") and not last_number("2 is not 3", "2") and not last_number("", "2")
    assert [closeness(text, "10") for text in ("10", "5", "it is 20", "none")] == [1.0, 0.5, 0.0, 0.0]
    boxes = [[{"role": "assistant", "content": text}] for text in ("\\boxed{2}", "2")]
    assert boxed_answer(boxes, ["2", "2"]) == [1.0, 0.0]
    assert short(["x" * 199, "x" * 200]) == [1.0, 0.0]
