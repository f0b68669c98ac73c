"""Runs of the script in which a stand-in plays the algorithm."""

import pytest

from algorithms.train import checkpoints
from algorithms.train import loop as train
from algorithms.train.main import main
from algorithms.train.run_directory import RunDirectory
from tests.runs.s3_server import server  # noqa: F401  a fixture
from tests.runs.stand_in import StandIn, load, save


@pytest.fixture
def algorithm(monkeypatch):
    """The stand-in's class, in place of the algorithm."""
    kind = type("GRPO", (StandIn,), {})
    monkeypatch.setattr(train, "_build", lambda config, seed: kind(config))
    monkeypatch.setattr(train, "load_checkpoint", load)
    monkeypatch.setattr(checkpoints, "save_checkpoint", save)
    return kind


@pytest.fixture
def command(algorithm, capsys):
    """The command line; gives its exit code and the last line of standard error."""

    def run(*arguments):
        code = main("grpo", list(arguments))
        captured = capsys.readouterr()
        return code, captured.err.splitlines()[-1]

    return run


@pytest.fixture
def run(command, tmp_path):
    """A run that has made its three steps, with a checkpoint of each."""
    small = ["run.steps=3", "run.checkpoint_every=1", "run.save_rollouts=false", "run.log_conversations=0"]
    code, said = command(f"run.dir={tmp_path}", "run.name=run", *small)
    assert code == 0, said
    return RunDirectory.open(tmp_path / "run")
