"""Ray's control process dies, is stopped, or cannot start: the run ends, with a checkpoint where one can be made."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.train.run_directory import checkpoint_steps

from .conftest import LIMIT_S

pytestmark = pytest.mark.slow

CONTROL = "gcs_server"
SHUTDOWN = "algorithms.train.stopping", "SHUTDOWN_S"


def test_a_sigterm_writes_a_checkpoint_and_a_second_one_ends_the_way_out(start):
    """Without the second one this run would wait for Ray: that limit is longer than the test's.

    It may come before the process has begun to leave.
    """
    run = start((*SHUTDOWN, 10.0 * LIMIT_S))
    run.child(CONTROL).send_signal(signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    while "interrupted" not in (line := run.process.stderr.readline()):
        assert line, "it ended by itself"
    run.process.send_signal(signal.SIGTERM)
    code, _, _ = run.end()
    assert code == 130
    steps = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert checkpoint_steps(run.folder / "checkpoints")[-1] == len(steps)
    assert not run.left()


def test_a_run_whose_ray_is_lost_ends_in_one_line_with_a_checkpoint_of_its_last_step(start):
    watch = "algorithms.train.ray_watch"
    # Together less than a minute, after which Ray aborts the process.
    run = start((*SHUTDOWN, 1.0), (watch, "SILENT_S", 8.0), (watch, "SAVING_S", 40.0))
    run.child(CONTROL).kill()
    code, errors, _ = run.end()
    assert code == 1 and "Traceback" not in errors, errors
    last = errors.splitlines()[-1]
    assert last.startswith("error: Ray's control process") and f"--resume {run.folder}" in last
    steps = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert last.endswith(f"step_{len(steps):06d}") and (run.folder / "checkpoints" / last.rsplit("/", 1)[1]).is_dir()
    assert not run.left()


STUCK = """
import sys, time
import ray
from algorithms.train import ray_watch
from algorithms.train.main import run_and_leave

ray.init = lambda **_: time.sleep(1000)
ray_watch.STARTING_S = 3.0
run_and_leave("grpo", sys.argv[1:])
"""


def test_a_start_of_ray_that_hangs_ends_in_one_line(tmp_path):
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ended = subprocess.run(
        [sys.executable, "-c", STUCK, f"run.dir={tmp_path}", "run.name=run", "env_runners.num_env_runners=1"],
        env=surroundings | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 1
    line = f"error: Ray did not start within 3 s; fix: --resume {tmp_path / 'run'}; no checkpoint yet"
    assert ended.stderr.splitlines()[-1] == line


def test_a_network_without_loopback_is_one_line(tmp_path):
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-n", "true"], capture_output=True, timeout=LIMIT_S).returncode:
        pytest.skip("no right to make a network namespace")
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ended = subprocess.run(
        [unshare, "-n", sys.executable, "-m", "algorithms.grpo", f"run.dir={tmp_path}", "learners.num_learners=1"],
        env=surroundings | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("error: Ray cannot start: 127.0.0.1") and "--resume" in last
