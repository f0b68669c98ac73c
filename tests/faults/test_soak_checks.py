"""The soak finds what it is there to find, and comes to an end."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

import psutil
import pytest

from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory
from benchmarks.soaking import rounds
from benchmarks.soaking.command import Command
from benchmarks.soaking.events import event_troubles
from benchmarks.soaking.faults import explained, terminate
from benchmarks.soaking.memory import LONG_ENOUGH_STEPS, MemoryWatch, in_words
from benchmarks.soaking.processes import kind, of_run
from benchmarks.soaking.rounds import MOST_IN_VAIN, Disturbance, run_round

FULL = "error: No space left on device (database or disk is full); what was written before is intact"
BUSY = "error: Ray did not start (timeout); fix: …"


@pytest.mark.parametrize(
    "code, last, faults",
    [
        (-signal.SIGKILL, "step 3/8 …", ["SIGKILL"]),
        (130, "interrupted", ["runner SIGKILL", "SIGINT"]),
        (130, "interrupted", ["SIGTERM"]),
        (-signal.SIGTERM, "", ["SIGTERM"]),
        (1, FULL, ["full disk"]),
        (1, BUSY, []),
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


def test_a_machine_that_stays_too_busy_ends_the_round(script):
    one = run_round(script(f"import sys; sys.exit({BUSY!r})"), "one process")
    assert not one.done and one.resumed == one.too_busy == MOST_IN_VAIN
    assert one.troubles == [f"{MOST_IN_VAIN + 1} processes without a step further: {BUSY}"]


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


def test_a_signal_that_was_not_sent_is_found(script):
    one = run_round(script("import os; os.kill(os.getpid(), 9)"), "one process")
    assert one.troubles == ["exit code -9 after no fault: "]


def grown(mib_a_step, steps):
    watch = MemoryWatch(80)
    for step in range(1, steps + 1):
        watch.note("a", "driver", step, 400.0)
        watch.note("b", "ray::IDLE" if step == 1 else "ray::LLMEnvRunner", step, 300.0 + mib_a_step * step)
        watch.note("c", "raylet", step, 10.0)
    for step in range(1, 9):
        watch.note("d", "ray::LLMEnvRunner", step, 1000.0 * step)  # made too few steps to be judged
        watch.note("e", "r3env.grading.child", step, 50.0)
    return watch


def test_a_process_that_grows_is_found_by_its_kind():
    watch = grown(5.0, 60)
    assert watch.growths_mib.keys() == {"driver", "ray::LLMEnvRunner", "raylet"}
    (trouble,) = watch.troubles
    assert trouble.startswith("ray::LLMEnvRunner grew by ")
    said = in_words(watch.growths_mib, watch.unjudged)
    assert "of 3 kinds of process ray::LLMEnvRunner grew most" in said and "not judged: r3env.grading.child" in said


def test_looks_between_two_steps_are_no_growth():
    """What a step takes is given back in between: half of the first looks lie 170 MiB lower."""
    watch = MemoryWatch(80)
    for step in range(1, 70):
        watch.note("a", "driver", step, 530.0 if step < 40 and step % 2 else 700.0)
    assert watch.growths_mib["driver"] == 0.0


def test_flat_memory_is_no_trouble_and_growth_while_settling_neither():
    watch = grown(0.1, 60)
    for step in range(1, 60):
        watch.note("f", "gcs_server", step, 50.0 * min(step, 10))
    assert watch.troubles == [] and watch.growths_mib["gcs_server"] == 0.0


def test_memory_that_nobody_could_judge_is_said_plainly():
    watch = grown(5.0, LONG_ENOUGH_STEPS)
    assert watch.growths_mib == {}
    assert in_words(watch.growths_mib, watch.unjudged).startswith("MEMORY NOT JUDGED")


LIMIT_S = 600  # of what takes seconds
SECOND = f"import time; time.sleep({LIMIT_S})"
FIRST = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, '-c', {SECOND!r}], stdout=subprocess.DEVNULL).pid)
"""
LEADER = f"""
import subprocess, sys, time
orphan = subprocess.run([sys.executable, '-c', {FIRST!r}], stdout=subprocess.PIPE, text=True).stdout
other = subprocess.Popen([sys.executable, '-c', {SECOND!r}], start_new_session=True).pid
print(orphan.strip(), other, flush=True)
time.sleep({LIMIT_S})
"""


def test_processes_without_a_parent_and_those_with_a_session_of_their_own_belong_to_the_run():
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        expected = {process.pid, *map(int, process.stdout.readline().split())}
        assert len(expected) == 3
        assert {one.pid for one in of_run(process.pid)} == expected
        assert of_run(process.pid)[0].pid == process.pid
    finally:
        for one in of_run(process.pid):
            one.kill()
        process.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize(
    "command, expected",
    [
        (["-m", "http.server", "0", "--bind", "127.0.0.1"], "http.server"),
        (["-u", "{script}"], "monitor.py"),
    ],
)
def test_kinds_of_process(tmp_path, command, expected):
    script = tmp_path / "monitor.py"
    script.write_text(f"import time\ntime.sleep({LIMIT_S})\n")
    process = subprocess.Popen(
        [sys.executable, *(word.format(script=script) for word in command)], stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        while kind(psutil.Process(process.pid), 0) != expected and time.monotonic() < deadline:
            time.sleep(0.01)  # between fork and exec it still has our command line
        assert kind(psutil.Process(process.pid), 0) == expected
        assert kind(psutil.Process(process.pid), process.pid) == "driver"
    finally:
        process.kill()
        process.wait(timeout=LIMIT_S)


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
