"""Runs of the script in which a stand-in plays the algorithm."""

import pytest

from algorithms.train import checkpoints
from algorithms.train import loop as train
from tests.runs.stand_in import StandIn, load, save


@pytest.fixture
def algorithm(monkeypatch):
    """The stand-in's class, in place of the algorithm."""
    kind = type("GRPO", (StandIn,), {})
    monkeypatch.setattr(train, "_build", lambda config, seed: kind(config))
    monkeypatch.setattr(train, "load_checkpoint", load)
    monkeypatch.setattr(checkpoints, "save_checkpoint", save)
    return kind
