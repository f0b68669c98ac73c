"""The command as a user calls it, with real training of the embedded model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.ablation.command import main

pytestmark = pytest.mark.slow

SMALL = [
    "training.queries_per_step=2",
    "training.group_size=2",
    "training.minibatches=1",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.limit=4",
    "evaluation.interval=1",
]
BUDGET = 900
# The second arm fails once it has started: its problems are nowhere.
ARMS = ["--arms", "grpo", "--arm", "lost=grpo:environment.data=nowhere.jsonl", "--seeds", "1", "--tokens", str(BUDGET)]


def command(out, *arguments):
    return [sys.executable, "-m", "benchmarks.ablation", "--out", str(out), *SMALL, *arguments]


def surroundings():
    checkout = str(Path(__file__).parents[2])
    return {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": checkout}


def call(out, *arguments):
    return subprocess.run(
        command(out, *arguments), env=surroundings(), capture_output=True, text=True, timeout=600, cwd=out.parent
    )


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """An ablation that got a SIGTERM in a run's first steps."""
    out = tmp_path_factory.mktemp("ablation") / "out"
    process = subprocess.Popen(
        command(out, *ARMS),
        env=surroundings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=out.parent,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as a shell starts it in the background
    )
    deadline = time.monotonic() + 400
    while not (out / "grpo-0" / "metrics.jsonl").exists():
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=400)
    return out, process.returncode, errors


@pytest.fixture(scope="module")
def resumed(interrupted):
    """The same command again."""
    return interrupted[0], call(interrupted[0], *ARMS)


def test_an_interrupt_ends_the_runs_with_a_checkpoint_each(interrupted):
    out, code, errors = interrupted
    assert code == 130, errors
    assert "the same command resumes" in errors
    assert not (out / "grpo-0" / "summary.json").exists()
    assert "grpo-0" in (out / "table.md").read_text()
    assert list((out / "grpo-0" / "checkpoints").glob("step_*"))


def test_the_same_command_goes_on_and_ends_with_the_step_that_fills_the_budget(resumed):
    out, _ = resumed
    tokens = [row["throughput/generated_tokens"] for row in rows(out / "grpo-0")]
    assert [row["step"] for row in rows(out / "grpo-0")] == list(range(1, len(tokens) + 1))
    assert tokens[-1] >= BUDGET > tokens[-2]
    assert "resumed" in (out / "logs" / "grpo-0.log").read_text()


def test_a_failed_run_ends_no_other_and_is_listed_with_its_log(resumed):
    out, process = resumed
    assert process.returncode == 1
    assert f"lost-0: failed with exit code 2, see {out / 'logs' / 'lost-0.log'}" in process.stdout
    assert "nowhere.jsonl" in (out / "logs" / "lost-0.log").read_text()
    assert (out / "table.md").read_text() in process.stdout
    (result,) = json.loads((out / "results.json").read_text())["runs"]
    assert result["generated_tokens"] >= BUDGET
    assert result["evaluations"]["step"] == list(range(result["steps"] + 1))
    assert (out / "curves.png").is_file()


def test_what_is_finished_is_not_run_again_and_other_settings_are_refused(resumed, capsys):
    out, _ = resumed
    again = ["--out", str(out), *SMALL, "--arms", "grpo", "--seeds", "1", "--tokens", str(BUDGET)]
    began = (out / "grpo-0" / "metrics.jsonl").stat().st_mtime_ns
    assert main(again) == 0
    assert (out / "grpo-0" / "metrics.jsonl").stat().st_mtime_ns == began
    assert main([*again, "training.lr=0.5"]) == 2
    assert "training.lr=0.00012, asked for 0.5" in capsys.readouterr().err


def test_the_same_grid_runs_on_ray_tune(tmp_path):
    process = call(tmp_path / "out", "--tune", "--arms", "r3", "--seeds", "1", "run.steps=1")
    assert process.returncode == 0, process.stderr
    assert len(rows(tmp_path / "out" / "r3-0")) == 1
    assert "| r3 | 1 |" in process.stdout
    assert "1/1 runs done" in process.stderr
