"""An environment that always fails stops the run with its own words; one that has no held-out problems says so."""

import subprocess

import pytest

from .conftest import SMALL

BROKEN = """
import gymnasium
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class Sums(VerifiableEnv):
    def load_queries(self):
        return [Query(str(n), f"{n}+1", str(n + 1)) for n in range(1, 7)]

    def verify(self, query, response):
        FAIL
        return Verdict(True, Reason.EQUAL)


gymnasium.register("Sums-v0", Sums)
"""


def _run(tmp_path, command, surroundings, fail):
    (tmp_path / "sums.py").write_text(BROKEN.replace("FAIL", fail))
    return subprocess.run(
        command("environment.id=sums:Sums-v0", "run.steps=1", *SMALL[1:]),
        cwd=tmp_path,
        env=surroundings | {"PYTHONPATH": f"{surroundings.get('PYTHONPATH', '')}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_an_environment_that_always_raises_stops_the_run_in_its_own_words(tmp_path, command, surroundings):
    done = _run(tmp_path, command, surroundings, 'raise RuntimeError("boom")')
    assert done.returncode == 1
    assert "boom" in done.stderr.splitlines()[-1] and "environment.id" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_training_problems_are_never_called_held_out(tmp_path, command, surroundings):
    done = _run(tmp_path, command, surroundings, "")
    assert done.returncode == 0, done.stderr
    assert "held-out" not in (done.stdout + done.stderr).lower()
    assert "Training problems" in done.stdout
