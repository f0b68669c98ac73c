"""A learner that is killed ends the run with one line, and the run goes on from its last checkpoint."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest

from algorithms.train.manifest import damage

from .conftest import SMALL

pytestmark = pytest.mark.slow

LIMIT_S = 400


def learner_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The only learner among a run's processes; RLlib's learners are actors of this class of Ray Train."""
    children = psutil.Process(process.pid).children(recursive=True)
    (learner,) = [child for child in children if title_of(child).startswith("ray::_WrappedExecutable")]
    return learner


def title_of(process: psutil.Process) -> str:
    """The command line of a process; nothing of one that has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_killed_learner_is_one_line_with_the_checkpoint_to_resume(command, surroundings, tmp_path):
    arguments = [*SMALL, f"run.dir={tmp_path}", "run.name=cut", "learners.num_learners=1"]
    process = subprocess.Popen(
        command(*arguments), env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    run = tmp_path / "cut"
    deadline = time.monotonic() + LIMIT_S
    while not (run / "checkpoints" / "step_000001" / "manifest.json").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    learner_of(process).kill()
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith("error: ") and "learners answered" in last and "--resume" in last
    checkpoint = Path(last.rpartition("the last checkpoint: ")[2])
    assert checkpoint.parent == run / "checkpoints" and damage(checkpoint) is None
