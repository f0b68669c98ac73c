"""The soak finds what it is there to find, and comes to an end."""

import json
import signal
from collections import Counter
from dataclasses import dataclass

import pytest

from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory
from benchmarks.soaking import rounds
from benchmarks.soaking.checks import event_troubles
from benchmarks.soaking.command import Command
from benchmarks.soaking.faults import explained, terminate
from benchmarks.soaking.rounds import MOST_IN_VAIN, Disturbance, run_round

FULL = "error: No space left on device (database or disk is full); what was written before is intact"


@pytest.mark.parametrize(
    "code, last, faults",
    [
        (-signal.SIGKILL, "step 3/8 …", ["SIGKILL"]),
        (130, "interrupted", ["runner SIGKILL", "SIGINT"]),
        (130, "interrupted", ["SIGTERM"]),
        (-signal.SIGTERM, "", ["SIGTERM"]),
        (1, FULL, ["full disk"]),
    ],
)
def test_an_end_that_follows_from_a_fault(code, last, faults):
    assert explained(code, last, faults)


@pytest.mark.parametrize(
    "code, last, faults",
    [
        (2, "error: step_000004: the checkpoint is damaged, …", ["SIGKILL"]),
        (-signal.SIGKILL, "", []),
        (-signal.SIGKILL, "", ["SIGINT"]),
        (-signal.SIGABRT, "", ["SIGTERM"]),
        (-signal.SIGSEGV, "", ["SIGKILL", "SIGTERM", "SIGINT", "full disk"]),
        (1, FULL, ["SIGKILL"]),
        (1, "OSError: [Errno 28] No space left on device", ["full disk"]),
        (1, "error: no env runner is left: …", ["runner SIGSTOP"]),
        (130, "interrupted", ["runner SIGKILL"]),
    ],
)
def test_an_end_that_does_not(code, last, faults):
    assert not explained(code, last, faults)


@dataclass(frozen=True)
class Script(Command):
    """Python code in the command's place."""

    code: str = ""

    def arguments(self) -> list[str]:
        return ["-c", self.code]


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "POLL_S", 0.01)
    folder = tmp_path / "run"
    folder.mkdir()
    return lambda code: Script(folder, steps=8, code=code)


def test_a_refused_resume_ends_the_round(script):
    command = script("import sys; print('error: the checkpoint is damaged', file=sys.stderr); sys.exit(2)")
    one = run_round(command, "one process")
    assert not one.done and one.resumed == 0
    assert one.troubles == ["exit code 2 after no fault: error: the checkpoint is damaged"]
    assert json.loads(json.dumps(vars(one)))["faults"] == {}


def test_faults_that_come_too_fast_pause_and_the_run_is_done(script, tmp_path):
    """No process can end by itself before the last one that is disturbed has its signal."""
    calm, disturbed = tmp_path / "calm", set()

    def terminate_and_count(run):
        terminate(run)
        disturbed.add(run.process.pid)
        if len(disturbed) == MOST_IN_VAIN:
            calm.touch()

    often = Disturbance({"SIGTERM": terminate_and_count}, every_s=1e-3)
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(calm)!r}).exists(): time.sleep(0.01)"
    one = run_round(script(waits), "one process", often)
    assert one.done and not one.troubles
    assert one.faults == Counter(SIGTERM=one.faults["SIGTERM"]) and one.resumed == MOST_IN_VAIN


EVALUATION = {"pass@1": 0.5}


@pytest.fixture
def run(tmp_path):
    """Three steps with an evaluation before, after the second, and after the last."""
    directory = RunDirectory.create(tmp_path, "run", "")
    with Recorder(directory) as recorder:
        recorder.record_evaluation(0, {"eval/pass@1": 0.5})
        for step in (1, 2, 3):
            row = {"step": step, "reward/mean": step / 3, "policy/loss": float(step), "rollout/engine": "transformers"}
            recorder.record(row | ({"eval/pass@1": 0.5} if step == 2 else {}))
        recorder.record_evaluation(3, {"eval/pass@1": 0.5})
    sides = {side: {"step": step, "metrics": EVALUATION} for side, step in (("before", 0), ("after", 3))}
    directory.write_evaluation(sides)
    return directory


def written_besides(run, tag, value, step):
    """By another writer, which hides nothing of the first."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.path), filename_suffix=".later") as writer:
        writer.add_scalar(tag, value, step)
    (file,) = run.path.glob("*.later")
    file.rename(run.path / "events.out.tfevents.9999999999.later")  # files are read by name: of one second, by number


def test_tensorboard_as_it_should_be(run):
    assert event_troubles(run.path, run.read_metrics()) == []


@pytest.mark.parametrize("tag, step", [("policy/loss", 3), ("eval/pass@1", 3), ("eval/pass@1", 0), ("eval/pass@1", 1)])
def test_a_point_too_many_of_any_tag_is_found(run, tag, step):
    written_besides(run, tag, 1.0, step)
    (trouble,) = event_troubles(run.path, run.read_metrics())
    assert f"steps [{step}] missing, doubled" in trouble and tag in trouble


def test_a_point_that_is_missing_and_one_of_another_run_are_found(run):
    rows = run.read_metrics()
    rows[1] |= {"ranking/ranked": 4}
    rows[2] |= {"reward/mean": 0.25}
    found = " ".join(event_troubles(run.path, rows))
    assert "steps [2] missing" in found and "ranking/ranked" in found
    assert "other values than metrics.jsonl at steps [3], of 1 tags, reward/mean" in found


def test_an_evaluation_that_tensorboard_lacks_is_found(run):
    stored = json.loads(run.evaluation_file.read_text())
    stored["after"]["metrics"]["pass@8"] = 0.75
    run.write_evaluation(stored)
    (trouble,) = event_troubles(run.path, run.read_metrics())
    assert "eval/pass@8" in trouble
