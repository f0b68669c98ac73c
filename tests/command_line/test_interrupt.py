"""Ctrl-C, and going on afterwards as if nothing had happened."""

import json
import os
import signal
import subprocess
import time

import pytest

from algorithms.train.main import main

from .conftest import SMALL, rows, untimed

pytestmark = pytest.mark.slow

LIMIT_S = 600  # of what takes seconds, and less than the slow verifier does


@pytest.fixture(scope="module")
def interrupted(command, surroundings, tmp_path_factory):
    """A run that got a Ctrl-C, to its whole process group, early in its second step."""
    folder = tmp_path_factory.mktemp("runs")
    process = subprocess.Popen(
        command(*SMALL, f"run.dir={folder}", "run.name=cut"),
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = folder / "cut" / "metrics.jsonl"
    deadline = time.monotonic() + LIMIT_S
    while not metrics.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    return folder / "cut", process.returncode, errors


def test_an_interrupted_run_says_how_to_go_on_and_exits_130(interrupted):
    run, code, errors = interrupted
    assert code == 130
    assert f"--resume {run}" in errors
    assert "Traceback" not in errors


def test_it_leaves_whole_steps_and_a_checkpoint_of_the_last_one(interrupted):
    run, _, _ = interrupted
    steps = [row["step"] for row in rows(run)]
    assert steps in ([1], [1, 2])
    assert (run / "checkpoints" / f"step_{steps[-1]:06d}" / "state.json").is_file()
    assert not (run / "summary.json").exists()


def test_resumed_it_becomes_the_run_that_was_never_interrupted(interrupted, finished_run, run_command):
    run, whole = interrupted[0], finished_run[0]
    before = len(rows(run))
    process = run_command("--resume", str(run))
    assert process.returncode == 0, process.stderr
    assert f"after step {before}" in process.stderr
    assert [row["step"] for row in rows(run)] == [1, 2, 3]
    for resumed, expected in zip(rows(run), rows(whole), strict=True):
        assert untimed(resumed) == untimed(expected)
    for name, timed in (("summary.json", "wall_s"), ("evaluation.json", "wall_s")):
        resumed, expected = (json.loads((folder / name).read_text()) for folder in (run, whole))
        assert resumed.keys() == expected.keys()
        assert {k: v for k, v in resumed.items() if k != timed} == {k: v for k, v in expected.items() if k != timed}


def test_another_algorithm_does_not_take_it_up(interrupted, capsys):
    assert main("grpo", ["--resume", str(interrupted[0])]) == 2
    assert "algorithms.r3_grpo --resume" in capsys.readouterr().err.splitlines()[-1]


def test_a_sigterm_while_engines_start_ends_it_as_ctrl_c_does(command, surroundings, tmp_path):
    """Ray's own handler prints a stack and leaves with a code of its own."""
    process = subprocess.Popen(
        command(*SMALL, f"run.dir={tmp_path}", "env_runners.num_env_runners=1"),
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("starting  engine"):
            process.send_signal(signal.SIGTERM)
            break
    said += process.stderr.readlines()
    assert process.wait(LIMIT_S) == 130, "".join(said)
    assert "SIGTERM received" not in "".join(said)


@pytest.fixture
def interruptible():
    """Whatever started the tests: a shell has what it starts in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_interrupt_does_not_wait_for_the_step(interruptible):
    from algorithms.train.stopping import InterruptBetweenSteps

    with InterruptBetweenSteps() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_second_interrupt_waits_where_no_checkpoint_could_be_made():
    from algorithms.train.stopping import InterruptBetweenSteps

    with InterruptBetweenSteps(lambda: False) as interrupt:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested


SLOW = """
import os, time
import gymnasium
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class Sums(VerifiableEnv):
    def load_queries(self):
        return [Query(str(n), f"{n}+1", str(n + 1)) for n in range(1, 7)]

    def verify(self, query, response):
        if os.path.exists("slow") or os.path.exists("runs/slow/evaluation.json"):
            open("verifying", "w").close()
            time.sleep(1000)
        return Verdict(len(response) % 2 == 0, Reason.EQUAL)


gymnasium.register("Sums-v0", Sums)
"""


def test_a_sigterm_does_not_wait_for_slow_rollouts(tmp_path, command, surroundings):
    (tmp_path / "sums.py").write_text(SLOW)
    environment = surroundings | {"PYTHONPATH": f"{surroundings['PYTHONPATH']}:{tmp_path}"}
    arguments = ["environment.id=sums:Sums-v0", *SMALL, "run.name=slow", "evaluation.limit=1", "evaluation.interval=0"]
    process = subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait_for(tmp_path / "verifying", process)  # after the evaluation before training
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and "--resume" in errors, errors
    assert not (tmp_path / "runs" / "slow" / "metrics.jsonl").exists()


def test_a_sigterm_during_an_evaluation_ends_it_as_ctrl_c_does(tmp_path, command, surroundings):
    (tmp_path / "sums.py").write_text(SLOW)
    (tmp_path / "slow").touch()
    environment = surroundings | {"PYTHONPATH": f"{surroundings['PYTHONPATH']}:{tmp_path}"}
    process = subprocess.Popen(
        command("environment.id=sums:Sums-v0", *SMALL, "run.name=slow"),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for(tmp_path / "verifying", process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted"


def _wait_for(path, process):
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.01)
