"""A learner that is stopped ends the run; one that only takes long does not."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from algorithms.learner.group import LearnerDied, each_learner
from algorithms.train.manifest import damage
from algorithms.utils import heartbeat
from tests.driver.conftest import two_runners

from .conftest import LIMIT_S

LEARNER = "ray::_WrappedExecutable"
# A beat comes every two seconds. On a machine where all files are being synced one came six seconds late.
SILENT_S = 16.0


@pytest.fixture
def learners(ray_session, build, monkeypatch):
    """Two learners in processes of their own, of which each has to give signs of life within seconds."""
    monkeypatch.setattr(heartbeat, "SILENT_S", SILENT_S)
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.5)
    return build(
        two_runners().env_runners(num_env_runners=0).learners(num_learners=2, num_cpus_per_learner=0.5)
    ).learner_group


def working(seconds: float) -> Callable[[Any], int]:
    """What takes long with Python's lock on the first learner, and asleep on the second.

    A function inside another one travels to the learner whole.
    """

    def work(learner: Any) -> int:
        if learner._learner_index:
            time.sleep(seconds)
            return os.getpid()
        began, count = time.perf_counter(), 10**7
        sum(range(count))
        sum(range(int(count * seconds / (time.perf_counter() - began))))  # one call of compiled code
        return os.getpid()

    return work


@pytest.mark.slow
def test_a_learner_may_take_long_asleep_or_with_the_lock_and_is_killed_when_it_is_stopped(learners):
    processes = each_learner(learners, working(SILENT_S + 3.0))
    assert len(processes) == 2
    os.kill(processes[0], signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(LearnerDied) as raised:
        each_learner(learners, lambda learner: 0)
    assert time.monotonic() - began < LIMIT_S
    assert str(raised.value).startswith("only 1 of 2 learners answered: one gave no sign of life")
    assert str(raised.value).endswith("--resume")


@pytest.mark.slow
def test_a_run_whose_learner_is_stopped_ends_in_one_line_with_the_checkpoint_to_resume(start):
    run = start(("algorithms.utils.heartbeat", "SILENT_S", 6.0))
    run.child(LEARNER).send_signal(signal.SIGSTOP)
    code, errors, _ = run.end()
    assert code == 1 and "Traceback" not in errors, errors
    last = errors.splitlines()[-1]
    assert last.startswith("error: ") and "no sign of life" in last and "--resume" in last, errors
    checkpoint = Path(last.rpartition("the last checkpoint: ")[2])
    assert checkpoint.parent == run.folder / "checkpoints" and damage(checkpoint) is None
    assert not run.left()
