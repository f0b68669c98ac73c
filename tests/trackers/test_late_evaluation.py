"""An evaluation that failed is made on resume, when its step has long been sent: it arrives, and once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import surroundings
from .late_evaluation import EVALUATIONS, STEPS
from .stores import mlflow_points, trackio_points, wandb_points
from .wandb_server import serving

LIMIT_S = 600
TRACKIO_SERVER = """
import sys, trackio
address = trackio.show(open_browser=False, block_thread=False)[3]
print("address", address, flush=True)
sys.stdin.read()
"""


def surrounding(folder, **variables):
    return os.environ | surroundings(folder) | {"PYTHONPATH": str(Path(__file__).parents[2])} | variables


def play(tracker, folder, *arguments, **variables):
    pytest.importorskip(tracker)
    done = subprocess.run(
        [sys.executable, "-m", "tests.trackers.late_evaluation", tracker, str(folder), *arguments],
        env=surrounding(folder, **variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0 and "run.trackers" not in done.stderr, done.stderr


@pytest.mark.slow  # six sessions, each of which needs a second of its own
def test_wandb_has_it_offline(tmp_path):
    play("wandb", tmp_path)
    assert wandb_points(tmp_path / "run", "reward/mean") == STEPS
    assert wandb_points(tmp_path / "run", "eval/pass@1") == EVALUATIONS


def test_a_server_of_wandb_has_it_at_its_step_though_its_row_comes_later(tmp_path):
    with serving() as server:
        play("wandb", tmp_path, WANDB_MODE="online", WANDB_BASE_URL=server.url, WANDB_API_KEY="k" * 40)
    assert server.points("reward/mean", at="step") == STEPS
    assert server.points("eval/pass@1", at="evaluation_step") == EVALUATIONS
    rows = [row["_step"] for row in server.history]
    assert rows == sorted(set(rows)), "wandb drops a row that comes again or too late"


def test_trackio_has_it_in_its_database(tmp_path):
    play("trackio", tmp_path)
    assert trackio_points(tmp_path / "trackio", "reward/mean") == STEPS
    assert trackio_points(tmp_path / "trackio", "eval/pass@1") == EVALUATIONS


@pytest.mark.slow
def test_a_server_of_trackio_has_it(tmp_path):
    pytest.importorskip("trackio")
    databases = tmp_path / "server"
    server = subprocess.Popen(
        [sys.executable, "-c", TRACKIO_SERVER],
        env=surrounding(tmp_path, TRACKIO_DIR=str(databases)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        try:
            address = next(line.split()[1] for line in server.stdout if line.startswith("address "))
            play("trackio", tmp_path, str(databases), TRACKIO_SERVER_URL=address)
            assert trackio_points(databases, "reward/mean") == STEPS
            assert trackio_points(databases, "eval/pass@1") == EVALUATIONS
        finally:
            server.kill()


@pytest.mark.slow  # MLflow makes its tables
def test_mlflow_has_it(tmp_path):
    play("mlflow", tmp_path)
    assert mlflow_points(tmp_path / "mlflow.db", "reward/mean") == STEPS
    assert mlflow_points(tmp_path / "mlflow.db", "eval/pass_at_1") == EVALUATIONS
