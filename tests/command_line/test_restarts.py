"""`run.restarts`: the run's process is killed, and the same command ends with the run that was never killed."""

import subprocess
import time

import psutil
import pytest

from benchmarks.soaking.checks import troubles

from .conftest import SMALL, rows, untimed

LIMIT_S = 600


@pytest.mark.slow
def test_a_killed_run_is_restarted_by_itself_and_becomes_the_run_that_was_never_killed(
    command, surroundings, finished_run, tmp_path
):
    process = subprocess.Popen(
        command(*SMALL, f"run.dir={tmp_path}", "run.name=cut", "run.restarts=1"),
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = tmp_path / "cut"
    deadline = time.monotonic() + LIMIT_S
    while not (run / "checkpoints" / "step_000001" / "manifest.json").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    (driver,) = psutil.Process(process.pid).children()
    rest = driver.children(recursive=True)
    driver.kill()
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("restart ")]
    assert line.startswith("restart 1: killed by SIGKILL") and f"; resuming {run} after step " in line
    assert [untimed(row) for row in rows(run)] == [untimed(row) for row in rows(finished_run[0])]
    assert troubles(run, 3, reference=finished_run[0], compared="numbers") == [], (
        "TensorBoard, rollout files and history too"
    )
    assert [each for each in rest if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
