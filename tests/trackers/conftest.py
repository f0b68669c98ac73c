"""Trackers without a network: wandb offline, MLflow in a database of the test's, Trackio in a folder of the test's."""

import pytest

_FOR_EVERY = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}


def surroundings(folder):
    """Environment variables with which all trackers write into a folder."""
    return _FOR_EVERY | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db", "TRACKIO_DIR": f"{folder}/trackio"}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The test's folder, into which all trackers write."""
    for package in ("wandb", "mlflow", "trackio"):
        pytest.importorskip(package)
    for name, value in surroundings(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)  # beside a database MLflow writes its files into the current folder
    return tmp_path
