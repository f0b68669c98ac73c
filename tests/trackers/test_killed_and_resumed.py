"""A run in all trackers, killed with SIGKILL two steps behind its checkpoint, and resumed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from .conftest import surroundings
from .stores import (
    mlflow_artifacts,
    mlflow_points,
    mlflow_runs,
    mlflow_tables,
    trackio_points,
    trackio_rows,
    wandb_points,
)

pytestmark = pytest.mark.slow

STEPS = [(step, step / 8) for step in range(1, 8)]
EVALUATIONS = [(0, 0.25), (7, 0.25)]
SETTINGS = [
    "run.name=run",
    "run.steps=7",
    "run.checkpoint_every=3",
    "run.save_rollouts=false",
    "run.trackers=[tensorboard,wandb,mlflow,trackio]",
]
ANSWERS = ['user: 2+2?\n\nassistant: 4, "four"\n<b>é', "user: 2+2?\n\nassistant: ?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    for package in ("wandb", "mlflow", "trackio"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("tracked")

    def start(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "tests.trackers.tracked_run", *arguments],
            env=os.environ | surroundings(folder) | {"PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=folder,  # beside a database MLflow writes its files into the current folder
            capture_output=True,
            text=True,
            timeout=600,
            start_new_session=True,
        )

    killed = start("6", f"run.dir={folder}", *SETTINGS)
    assert killed.stdout.endswith("killed\n"), killed.stderr
    assert sorted(path.name for path in (folder / "run" / "checkpoints").iterdir()) == ["step_000003"]
    resumed = start("0", "--resume", str(folder / "run"))
    assert resumed.returncode == 0, resumed.stderr
    return folder


def test_tensorboard_has_each_step_once(folder):
    events = EventAccumulator(str(folder / "run"), {SCALARS: 0})
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == STEPS


def test_wandb_has_each_step_once_in_one_run(folder):
    assert wandb_points(folder / "run", "reward/mean") == STEPS
    assert wandb_points(folder / "run", "eval/pass@1") == EVALUATIONS
    assert len({file.stem for file in (folder / "run" / "wandb").glob("offline-run-*/*.wandb")}) == 1


def test_mlflow_has_each_step_once_in_one_run(folder):
    assert mlflow_points(folder / "mlflow.db", "reward/mean") == STEPS
    assert mlflow_points(folder / "mlflow.db", "eval/pass_at_1") == EVALUATIONS
    assert mlflow_runs(folder / "mlflow.db") == [("run", "FINISHED")]


def test_trackio_has_each_step_once_in_one_run(folder):
    assert trackio_points(folder / "trackio", "reward/mean") == STEPS
    assert trackio_points(folder / "trackio", "eval/pass@1") == EVALUATIONS
    assert len({run for run, _, _ in trackio_rows(folder / "trackio")}) == 1


def test_each_step_has_its_table_of_conversations_once(folder):
    tables = mlflow_tables(folder / "mlflow.db")
    assert list(tables) == [f"step-{step:06d}.csv" for step in range(1, 8)]
    assert all([row["conversation"] for row in table] == ANSWERS for table in tables.values())
    in_trackio = trackio_points(folder / "trackio", "conversations")
    assert [step for step, _ in in_trackio] == list(range(1, 8))
    assert all([row["conversation"] for row in table["_value"]] == ANSWERS for _, table in in_trackio)
    in_wandb = wandb_points(folder / "run", "conversations/path")
    assert [step for step, _ in in_wandb] == list(range(1, 8))
    for _, path in in_wandb:
        for file in (folder / "run" / "wandb").glob(f"offline-run-*/files/{path}"):
            assert [row[-1] for row in json.loads(file.read_text())["data"]] == ANSWERS


def test_the_configuration_and_the_summary_are_there(folder):
    artifacts = mlflow_artifacts(folder / "mlflow.db")
    assert "checkpoint_every: 3" in (artifacts / "config.yaml").read_text()
    assert json.loads((artifacts / "summary.json").read_text())["eval"]["after"] == {"pass@1": 0.25}
    ((step, summary),) = trackio_points(folder / "trackio", "summary")
    assert step == 7 and "pass@1: 0.25" in summary["_value"]
