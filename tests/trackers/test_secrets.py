"""No file of a tracker, nor of what its client would upload, holds a secret of the configuration."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.config.secrets import HIDDEN

from .conftest import surroundings

SECRET = "sesame-open-1234"
# In a process of its own, as Trackio settles on its folder when it is imported, and wandb looks at the command line.
RUN = """
import sys, yaml
from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory

secret, *trackers = sys.argv[1:]
servers = {"web": {"url": "http://host/mcp", "headers": {"Authorization": f"Bearer {secret}"}}}
config = {"algorithm": "grpo", "environment": {"id": "r3env/Tools-v0", "options": {"mcp_servers": servers}}}
run = RunDirectory.create(".", "run", yaml.safe_dump(config))
with Recorder(run, trackers=trackers) as recorder:
    recorder.record_settings(config)
    recorder.record({"step": 1, "reward/mean": 0.5})
with Recorder(run, 1, trackers=trackers) as recorder:
    recorder.resume_settings(config, changed=False)
    recorder.record({"step": 2, "reward/mean": 0.5})
"""


def holding(folder, text):
    return {file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()}


def test_trackers_get_the_configuration_without_its_secrets(tmp_path):
    trackers = ("tensorboard", "wandb", "trackio", "mlflow")
    for tracker in trackers:
        pytest.importorskip(tracker)
    done = subprocess.run(
        [sys.executable, "-c", RUN, SECRET, *trackers],
        env=os.environ | surroundings(tmp_path) | {"PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert holding(tmp_path, SECRET) == {tmp_path / "run" / "config.yaml"}, "which stays whole"
    hiding = [str(file.relative_to(tmp_path)) for file in holding(tmp_path, HIDDEN)]
    for tracker in trackers[1:]:  # TensorBoard's page has no column for it
        assert any(tracker in name for name in hiding), tracker
