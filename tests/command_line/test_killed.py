"""SIGKILL, damage and full disks: what was there before is still there, and the run goes on as if nothing had been."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from algorithms.train.main import main
from algorithms.train.manifest import damage
from benchmarks.soaking.checks import troubles
from tests.runs.s3_server import AWS

from .conftest import SMALL, rows, untimed

LIMIT_S = 600
MOMENTS = [
    "rollouts/step-000002.parquet",  # a step done whose metrics are not written
    "checkpoints/.step_000002.partial/state.json",  # a checkpoint half written, and one of step 1 whole
]
# The script, which comes to a stand in the middle of the checkpoint of step 2.
STANDING = """
import runpy, time
from algorithms.train import checkpoints as manifest  # before what takes the function from it

whole = manifest.write_manifest


def write_manifest(folder):
    if folder.name == ".step_000002.partial":
        time.sleep(10_000)
    whole(folder)


manifest.write_manifest = write_manifest
runpy.run_module("algorithms.r3_grpo", run_name="__main__", alter_sys=True)
"""


def killed_when(there: Path, arguments: list[str], surroundings: dict[str, str]) -> None:
    """Start a run that comes to a stand, and kill it, with all its processes, as soon as a file is there."""
    process = subprocess.Popen(
        [sys.executable, "-c", STANDING, *arguments],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + LIMIT_S
    while not there.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    ended = process.poll() is not None
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
    output = process.communicate(timeout=LIMIT_S)
    assert not ended, f"the run ended before it could be killed: {output}"
    assert there.exists(), f"the moment never came: {output}"


def test_killed_at_any_moment_and_again_it_becomes_the_run_that_was_never_killed(
    command, surroundings, finished_run, tmp_path
):
    """The last process is killed as well, and `run.restarts` resumes the run by itself."""
    run, resume = tmp_path / "cut", ["--resume", str(tmp_path / "cut")]
    first, second = (run / moment for moment in MOMENTS)
    killed_when(first, [*SMALL, f"run.dir={tmp_path}", "run.name=cut"], surroundings)
    killed_when(second, resume, surroundings)
    process = subprocess.Popen(
        command(*resume, "run.restarts=1"),
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + LIMIT_S
    while not (run / "checkpoints" / "step_000002" / "manifest.json").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    (driver,) = psutil.Process(process.pid).children()
    rest = driver.children(recursive=True)
    driver.kill()
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("restart ")]
    assert line.startswith("restart 1: killed by SIGKILL") and f"; resuming {run} after step " in line
    assert [each for each in rest if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
    expected = rows(finished_run[0])
    assert [untimed(row) for row in rows(run)] == [untimed(row) for row in expected]
    assert troubles(run, 3, reference=finished_run[0], compared="numbers") == [], (
        "TensorBoard, rollout files and history too"
    )
    assert not list((run / "checkpoints").glob(".*"))


def test_a_run_whose_machine_is_gone_is_resumed_from_its_copy(
    surroundings, run_command, finished_run, server, tmp_path
):
    def stands():
        return json.loads(server.objects.get("runs/cut/copy.json", '{"step": 0}'))["step"] == 1

    arguments = [*SMALL, f"run.dir={tmp_path}", "run.name=cut", f"run.copy_to={server.uri}"]
    killed_when(SimpleNamespace(exists=stands), arguments, surroundings | AWS)
    shutil.rmtree(tmp_path / "cut")
    run = tmp_path / "elsewhere/cut"
    resumed = subprocess.run(
        [sys.executable, "-m", "algorithms.r3_grpo", "--resume", server.of_run("cut"), f"run.dir={run.parent}"],
        env=surroundings | AWS,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert [untimed(row) for row in rows(run)] == [untimed(row) for row in rows(finished_run[0])]
    assert json.loads(server.objects["runs/cut/copy.json"])["step"] == 3
    assert damage(run / "checkpoints/step_000001") is None


@pytest.fixture
def a_copy(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run[0], tmp_path / "copy"))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_goes_on(a_copy, finished_run, capsys):
    weights = next((a_copy / "checkpoints" / "step_000003" / "model").glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 4
    weights.write_bytes(content)
    assert main("r3_grpo", ["--resume", str(a_copy)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    before = a_copy / "checkpoints" / "step_000002"
    assert f"model/{weights.name} has changed" in last and last.endswith(f"--resume {before}")

    assert main("r3_grpo", ["--resume", str(before)]) == 0
    assert [untimed(row) for row in rows(a_copy)] == [untimed(row) for row in rows(finished_run[0])]
    assert troubles(a_copy, 3, reference=finished_run[0], compared="numbers") == [], "step 3 is made again, not doubled"


@pytest.mark.slow
def test_a_finished_run_goes_on_with_more_steps_which_are_its_own_from_then_on(a_copy):
    assert main("r3_grpo", ["--resume", str(a_copy), "run.steps=4"]) == 0
    assert yaml.safe_load((a_copy / "config.yaml").read_text())["run"]["steps"] == 4
    assert [row["step"] for row in rows(a_copy)] == [1, 2, 3, 4]
    assert json.loads((a_copy / "summary.json").read_text())["steps"] == 4
    assert json.loads((a_copy / "evaluation.json").read_text())["after"]["step"] == 4
    events = EventAccumulator(str(a_copy), {SCALARS: 0})
    events.Reload()
    assert [event.step for event in events.Scalars("eval/pass@1")] == [0, 2, 3, 4]


@pytest.mark.slow
def test_a_run_whose_history_is_gone_is_not_resumed_as_if_it_were_there(a_copy, capsys):
    for file in a_copy.glob("history.sqlite*"):
        file.unlink()
    assert main("r3_grpo", ["--resume", str(a_copy), "run.steps=4"]) == 2
    assert "history.sqlite: the history ends at its event 0, before" in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few MiB; making one takes the rights of root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"no right to mount a small file system: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
def test_a_full_disk_during_a_checkpoint_leaves_the_one_before_whole(small_disk, run_command):
    """Room for the first checkpoint, and not for the second."""
    process = run_command(*SMALL, f"run.dir={small_disk}", "run.name=cut")
    run = small_disk / "cut"
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert "No space left" in last and "--resume" in last and "Traceback" not in process.stderr
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert checkpoint.name == "step_000001" and damage(checkpoint) is None
