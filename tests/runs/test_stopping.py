"""Whatever ends a run leaves a checkpoint where one can be made; a stand-in plays the algorithm."""

import os
import shutil
import signal

import pytest
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from algorithms.learner.group import LearnerDied
from algorithms.preflight.ray_session import RayDidNotStart
from algorithms.rollout.failures import EpisodesFailed
from algorithms.train import checkpoints, stopping
from algorithms.train import loop as train
from algorithms.train import main as script
from algorithms.train.run_directory import RunDirectory
from algorithms.train.stopping import InterruptBetweenSteps
from algorithms.utils.errors import CheckpointError
from tests.runs.stand_in import save


@pytest.fixture
def run(algorithm, monkeypatch, tmp_path):
    """Three steps, and a checkpoint at the end only; gives the exit code and the steps of the checkpoints."""

    def start(*arguments):
        small = ["run.steps=3", "run.checkpoint_every=0", "run.save_rollouts=false", "run.log_conversations=0"]
        code = script.main("grpo", list(arguments) or [f"run.dir={tmp_path}", "run.name=run", *small])
        folder = tmp_path / "run" / "checkpoints"
        return code, sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    return start


def terminate_twice():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def signals_while_saving(algorithm, monkeypatch):
    """Two SIGTERM come as soon as a checkpoint is being written."""

    def save_under_signals(*arguments):
        terminate_twice()
        save(*arguments)

    monkeypatch.setattr(checkpoints, "save_checkpoint", save_under_signals)


def in_its_second_step(algorithm, happens):
    """Let the rollouts of the second step fail with an error, or whatever a function does."""
    whole = algorithm.train

    def train(self):
        if self.steps_done == 1:
            self.in_step = True
            if isinstance(happens, Exception):
                raise happens
            happens()
        return whole(self)

    algorithm.train = train


def test_signals_while_a_checkpoint_is_written_wait_for_it():
    with InterruptBetweenSteps() as interrupt:
        with interrupt.saving():
            terminate_twice()
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_checkpoint_that_hangs_is_given_up_at_the_second_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    try:
        with InterruptBetweenSteps() as interrupt, pytest.raises(KeyboardInterrupt), interrupt.saving():
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupt.requested
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_do_not_cost_the_last_checkpoint(run, signals_while_saving, tmp_path, capsys):
    assert run() == (130, ["step_000003"])
    assert f"--resume {tmp_path / 'run'}" in capsys.readouterr().err
    assert run("--resume", str(tmp_path / "run")) == (0, ["step_000003"])


def test_signals_do_not_cost_the_checkpoint_that_an_interrupt_asked_for(run, algorithm, signals_while_saving):
    in_its_second_step(algorithm, terminate_twice)
    assert run() == (130, ["step_000001"])


@pytest.mark.parametrize("error", [EpisodesFailed("env_runners.max_failed_share: most failed"), ZeroDivisionError()])
def test_an_error_in_the_rollouts_leaves_the_state_that_its_step_began_with(run, algorithm, capsys, error):
    in_its_second_step(algorithm, error)
    if isinstance(error, EpisodesFailed):
        assert run() == (1, ["step_000001"])
    else:
        with pytest.raises(ZeroDivisionError):
            run()
    assert "stopped by an error after step 1; resume with --resume" in capsys.readouterr().err


def in_the_evaluation_after_its_second_step(algorithm, error):
    """Let the second step end, and the evaluation after it fail, or do whatever a function does."""
    whole = algorithm.train

    def train(self):
        result = whole(self)
        if self.steps_done == 2:
            if isinstance(error, Exception):
                raise error
            self.evaluating = True
            try:
                error()
            finally:
                self.evaluating = False
        return result

    algorithm.train = train


@pytest.mark.parametrize("error", [EpisodesFailed("every one of 8 episodes failed: x; fix: y"), ZeroDivisionError()])
def test_an_evaluation_that_fails_between_steps_costs_no_step(run, algorithm, tmp_path, capsys, error):
    whole = algorithm.train
    in_the_evaluation_after_its_second_step(algorithm, error)
    resume = f"resume with --resume {tmp_path / 'run'}"
    if isinstance(error, EpisodesFailed):
        assert run() == (1, ["step_000002"])
        last = capsys.readouterr().err.splitlines()[-1]
        assert last == f"error: the evaluation after step 2 failed: {error}; then {resume}"
    else:
        with pytest.raises(ZeroDivisionError):
            run()
        assert f"stopped by an error after step 2; {resume}" in capsys.readouterr().err
    algorithm.train = whole
    assert run("--resume", str(tmp_path / "run")) == (0, ["step_000002", "step_000003"])
    assert [row["step"] for row in RunDirectory.open(tmp_path / "run").read_metrics()] == [1, 2, 3]


def terminate_and_go_on_for_long():
    terminate_twice()
    pytest.fail("a SIGTERM did not end the evaluation")


FAILED = EpisodesFailed("every one of 8 episodes failed: x; fix: y")


@pytest.mark.parametrize(("what", "code"), [(FAILED, 1), (terminate_and_go_on_for_long, 130)])
def test_a_resumed_run_makes_the_evaluation_that_did_not_end_and_has_it_in_its_row(
    run, algorithm, tmp_path, what, code
):
    whole = algorithm.train
    in_the_evaluation_after_its_second_step(algorithm, what)
    settings = ["run.save_rollouts=false", "run.log_conversations=0", "run.checkpoint_every=0", "evaluation.interval=2"]
    assert run(f"run.dir={tmp_path}", "run.name=run", "run.steps=3", *settings) == (code, ["step_000002"])
    metrics = RunDirectory.open(tmp_path / "run").read_metrics
    assert "eval/pass@1" not in metrics()[-1]
    algorithm.train = whole
    assert run("--resume", str(tmp_path / "run")) == (0, ["step_000002", "step_000003"])
    assert [row.get("eval/pass@1") for row in metrics()] == [None, 0.25, None]
    events = EventAccumulator(str(tmp_path / "run"), {SCALARS: 0})
    events.Reload()
    assert [event.step for event in events.Scalars("eval/pass@1")] == [0, 2, 3]


def test_a_resume_says_how_many_steps_it_repeats(run, algorithm, tmp_path, capsys):
    whole = algorithm.train
    in_the_evaluation_after_its_second_step(algorithm, terminate_and_go_on_for_long)
    settings = ["run.save_rollouts=false", "run.log_conversations=0", "run.checkpoint_every=1"]
    assert run(f"run.dir={tmp_path}", "run.name=run", "run.steps=3", *settings)[0] == 130
    algorithm.train = whole
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_000002")
    capsys.readouterr()
    assert run("--resume", str(tmp_path / "run")) == (0, ["step_000001", "step_000002", "step_000003"])
    assert " after step 1; later steps of metrics.jsonl, which are repeated: 1" in capsys.readouterr().err


def test_a_learner_that_dies_in_an_evaluation_between_steps_leaves_no_checkpoint(run, algorithm, capsys):
    in_the_evaluation_after_its_second_step(algorithm, LearnerDied("a learner died"))
    assert run() == (1, [])
    assert capsys.readouterr().err.splitlines()[-1] == "error: a learner died; no checkpoint yet"


def test_an_evaluation_after_training_that_fails_says_how_to_continue(run, algorithm, tmp_path, capsys):
    def fails(self):
        if self.steps_done:
            raise EpisodesFailed("every one of 8 episodes failed: x; fix: y")
        whole(self)

    whole, algorithm.evaluate = algorithm.evaluate, fails
    assert run() == (1, ["step_000003"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: the evaluation after training failed: every one of 8 episodes failed: x; fix: y; ")
    assert last.endswith(f"; then resume with --resume {tmp_path / 'run'}")


@pytest.mark.parametrize(
    ("error", "can_be_saved"), [(LearnerDied("a learner died"), True), (EpisodesFailed("none"), False)]
)
def test_what_can_not_be_saved_is_not(run, algorithm, error, can_be_saved):
    in_its_second_step(algorithm, error)
    algorithm.can_be_saved = can_be_saved
    assert run() == (1, [])


@pytest.mark.parametrize(
    ("end", "code"),
    [(SystemExit(signal.SIGTERM), 15), (ZeroDivisionError(), 1), (LearnerDied("a learner died"), 1)],
    ids=["sigterm while Ray starts", "defect", "error in one line"],
)
def test_however_a_run_ends_the_process_ends_with_it(end, code, monkeypatch, tmp_path, capsys):
    """What RLlib frees on Python's own way out would start Ray again, and wait for ever."""

    def fails(*_):
        raise end

    left = []
    monkeypatch.setattr(train, "_build", fails)
    monkeypatch.setattr(stopping, "leave", left.append)
    monkeypatch.setattr(stopping, "guard_streams", lambda: None)  # they are pytest's
    script.run_and_leave("grpo", [f"run.dir={tmp_path}", "run.name=run", "run.steps=1"])
    assert left == [code]
    assert ("Traceback" in capsys.readouterr().err) == isinstance(end, ZeroDivisionError)


def test_a_run_is_locked_before_ray_starts_and_deleted_if_it_does_not(monkeypatch, tmp_path):
    """Another process could else train in the folder that this one deletes."""

    def does_not_start(_):
        with pytest.raises(CheckpointError, match="trains here"), RunDirectory.open(tmp_path / "run").locked():
            pass
        raise RayDidNotStart("Ray did not start")

    monkeypatch.setattr(train, "_start_ray", does_not_start)
    assert script.main("grpo", [f"run.dir={tmp_path}", "run.name=run", "run.steps=1"]) == 1
    assert not (tmp_path / "run").exists()


def test_a_full_disk_does_not_hide_what_ended_the_run(run, algorithm, monkeypatch, capsys, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_checkpoint", full)
    in_its_second_step(algorithm, EpisodesFailed("env_runners.max_failed_share: most failed"))
    assert run() == (1, [])
    assert capsys.readouterr().err.splitlines()[-1] == "error: env_runners.max_failed_share: most failed"
    assert "no checkpoint could be written: [Errno 28] No space left on device" in caplog.text
