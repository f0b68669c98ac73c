"""Which checkpoints a real run leaves, by what it measured at each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.script.manifest import damage

pytestmark = pytest.mark.slow

BEST = "reward/mean"
SMALL = [
    "run.seed=4",
    "run.checkpoint_every=1",
    f"run.best_metric={BEST}",
    "run.save_rollouts=false",
    "training.queries_per_step=4",
    "training.group_size=4",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.limit=2",
    "evaluation.interval=0",
]


def train(*arguments):
    checkout = str(Path(__file__).parents[2])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    process = subprocess.run(
        [sys.executable, "-m", "algorithms.r3_grpo", *arguments],
        env=environment | {"PYTHONPATH": checkout},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr


def kept(run):
    """The steps of its checkpoints, each of them whole and with what was measured at it."""
    measured, steps = values(run), []
    for path in sorted((run / "checkpoints").iterdir()):
        assert damage(path) is None
        state = json.loads((path / "state.json").read_text())
        assert path.name == f"step_{state['steps_done']:06d}"
        assert state["metrics"][BEST] == measured[state["steps_done"]]
        steps.append(state["steps_done"])
    return steps


def values(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row[BEST] for row in rows}


def test_the_newest_and_the_best_stay_on_the_disk(tmp_path):
    run = tmp_path / "kept"
    train(*SMALL, "run.steps=4", "run.keep_checkpoints=1", f"run.dir={tmp_path}", f"run.name={run.name}")
    measured = values(run)
    best = max(measured, key=lambda step: (measured[step], -step))
    assert best < 4, "else the best would be the newest; take another seed"
    assert kept(run) == [best, 4]
