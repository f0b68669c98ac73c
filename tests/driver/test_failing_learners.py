"""A learner that fails: gone in the middle of an update it is one line, any other error is what it is."""

import contextlib
import os
import signal
from collections.abc import Callable

import numpy as np
import psutil
import pytest
import torch

from algorithms.learner import calls
from algorithms.learner.batch import TrainingSample
from algorithms.learner.group import LearnerDied, LearnerOutOfMemory, each_learner, score_rows, update_learners
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from algorithms.utils.errors import RunError

from .conftest import two_runners

ROWS = [
    TrainingSample(np.arange(6, dtype=np.int32), np.arange(6) > 2, 1.0, 0.1, None, np.zeros(3, np.float32))
    for _ in range(4)
]
FULL = "CUDA out of memory. Tried to allocate 2 GiB.\nand more"


def configuration(learners: int):
    return two_runners().env_runners(num_env_runners=0).learners(num_learners=learners, num_cpus_per_learner=0.5)


@pytest.fixture(scope="module")
def remote(ray_session):
    """A learner in a process of its own, which fails and lives."""
    algorithm = configuration(1).build_algo()
    yield algorithm.learner_group
    algorithm.stop()


@pytest.fixture
def group(remote):
    """RLlib asks no learner again that once raised."""
    for number in remote._worker_manager.actor_ids():
        remote._worker_manager.set_actor_state(number, healthy=True)
    return remote


def before_gradients_are_summed(group, do: Callable[[int], None]) -> None:
    """Let learners do something in the middle of each update; `do` gets a learner's number."""

    def put(learner) -> None:
        learner._release_gathered_weights = lambda: do(learner._learner_index)

    list(group.foreach_learner(put))


def failing(error: Exception) -> Callable[..., None]:
    """What raises it; a function inside another one travels to the learner whole."""

    def fail(*_, **__) -> None:
        raise error

    return fail


@pytest.mark.slow
def test_a_learner_that_is_killed_in_an_update_is_one_line(ray_session, build):
    group = build(configuration(2)).learner_group
    before_gradients_are_summed(group, lambda number: number == 1 and os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(LearnerDied) as raised:
        update_learners(group, ROWS, 1e-4)
    assert str(raised.value).startswith("only 1 of 2 learners answered: one died, or was killed")
    assert str(raised.value).endswith("--resume") and not isinstance(raised.value, LearnerOutOfMemory)


@pytest.mark.slow
def test_a_learner_that_waits_for_a_failed_one_is_ended_and_the_first_error_is_raised(ray_session, build, monkeypatch):
    """The first one is in the sum of gradients, which the second never joins: its process lives."""
    monkeypatch.setattr(calls, "GRACE_S", 1.0)
    group = build(configuration(2)).learner_group
    processes = each_learner(group, lambda learner: os.getpid())
    error = torch.OutOfMemoryError(FULL)

    def fail_in_the_second(number: int) -> None:
        if number == 1:
            raise error

    before_gradients_are_summed(group, fail_in_the_second)
    with pytest.raises(LearnerOutOfMemory, match="learners.token_budget"):
        update_learners(group, ROWS, 1e-4)
    wait_until_gone(processes[0])
    assert psutil.pid_exists(processes[1])
    with pytest.raises(LearnerDied, match="only 0 of 2 learners answered"):
        each_learner(group, lambda learner: os.getpid())


def wait_until_gone(process: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(process).wait(timeout=300)


@pytest.mark.slow
def test_a_learner_that_dies_while_a_checkpoint_is_read_is_not_taken_for_damage(ray_session, build, tmp_path):
    algorithm = build(configuration(1))
    path = save_checkpoint(algorithm, tmp_path)
    (process,) = each_learner(algorithm.learner_group, lambda learner: os.getpid())
    os.kill(process, signal.SIGKILL)
    with pytest.raises(LearnerDied, match="only 0 of 1 learners answered"):
        load_checkpoint(algorithm, path)


@pytest.mark.slow
def test_any_other_error_of_an_update_is_raised_as_it_is(group):
    before_gradients_are_summed(group, failing(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        update_learners(group, ROWS, 1e-4)


def test_any_other_error_of_scoring_is_raised_as_it_is(group):
    fail = failing(ValueError("a bug"))
    list(group.foreach_learner(lambda learner: setattr(learner, "score", fail)))
    with pytest.raises(ValueError, match="a bug"):
        score_rows(group, ROWS, entropy=False)


def test_an_error_of_one_line_arrives_without_the_traceback_of_the_learner(group):
    fail = failing(RunError("mine:Term.token_loss returned None; fix: return float [N]"))
    list(group.foreach_learner(lambda learner: setattr(learner, "score", fail)))
    with pytest.raises(RunError) as raised:
        score_rows(group, ROWS, entropy=False)
    assert str(raised.value) == "mine:Term.token_loss returned None; fix: return float [N]"


def test_a_full_device_names_the_setting(group):
    before_gradients_are_summed(group, failing(torch.OutOfMemoryError(FULL)))
    with pytest.raises(LearnerOutOfMemory, match="learners.token_budget") as raised:
        update_learners(group, ROWS, 1e-4)
    assert str(raised.value).splitlines() == [str(raised.value)] and "Tried to allocate 2 GiB" in str(raised.value)


def test_a_full_device_of_the_scripts_own_process_names_the_setting(ray_session, build):
    group = build(configuration(0)).learner_group
    before_gradients_are_summed(group, failing(torch.OutOfMemoryError(FULL)))
    with pytest.raises(LearnerOutOfMemory, match="learners.token_budget"):
        update_learners(group, ROWS, 1e-4)
    group._learner.score = failing(torch.OutOfMemoryError(FULL))
    with pytest.raises(LearnerOutOfMemory, match="learners.token_budget"):
        score_rows(group, ROWS, entropy=False)
