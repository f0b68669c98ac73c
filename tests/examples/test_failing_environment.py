"""An environment that always fails stops the run with its own words; one that has no held-out problems says so."""

import pytest

from algorithms.train.main import main

SUMS = """
import gymnasium
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class Sums(VerifiableEnv):
    def load_queries(self):
        return [Query(str(n), f"{n}+1", str(n + 1)) for n in range(1, 7)]

    def verify(self, query, response):
        if query.problem.startswith("FAILING"):
            raise RuntimeError("boom")
        return Verdict(True, Reason.EQUAL)


gymnasium.register("NAME-v0", Sums)
"""


@pytest.fixture
def train(tmp_path, monkeypatch, small_run, ray_session):
    """Trains on sums, of which those fail whose problem begins so; returns the exit code."""

    def run(name, failing):
        (tmp_path / f"{name}.py").write_text(SUMS.replace("NAME", name).replace("FAILING", failing))
        monkeypatch.syspath_prepend(tmp_path)
        return main("r3_grpo", [f"environment.id={name}:{name}-v0", *small_run, "run.steps=1"])

    return run


@pytest.mark.slow
def test_an_environment_that_always_raises_stops_the_run_in_its_own_words(train, capsys):
    assert train("broken_sums", "") == 1
    errors = capsys.readouterr().err
    assert "boom" in errors.splitlines()[-1] and "environment.id" in errors.splitlines()[-1]
    assert "Traceback" not in errors


@pytest.mark.slow
def test_training_problems_are_never_called_held_out(train, capsys):
    assert train("plain_sums", "none") == 0
    printed = "".join(capsys.readouterr())
    assert "held-out" not in printed.lower() and "Training problems" in printed
