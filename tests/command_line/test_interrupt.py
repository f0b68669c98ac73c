"""Ctrl-C, and going on afterwards as if nothing had happened."""

import json
import os
import signal
import subprocess
import time

import pytest

from .conftest import SMALL, rows, untimed

pytestmark = pytest.mark.slow


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
    deadline = time.monotonic() + 120
    while not metrics.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
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


def test_another_algorithm_does_not_take_it_up(interrupted, run_command):
    process = run_command("--resume", str(interrupted[0]), algorithm="grpo")
    assert process.returncode == 2
    assert "algorithms.r3_grpo --resume" in process.stderr.splitlines()[-1]


def test_a_second_interrupt_does_not_wait_for_the_step():
    from algorithms.script.interrupts import InterruptBetweenSteps

    with InterruptBetweenSteps() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
