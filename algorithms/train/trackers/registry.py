"""Trackers by name: which there are, whether they can start, and the tracked runs of a run directory."""

import importlib.util
import json
from collections.abc import Sequence

from algorithms.config.errors import ConfigError, ServiceError
from algorithms.config.plugins import load_plugin
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.mlflow_run import MlflowRun
from algorithms.train.trackers.tracker import Tracker
from algorithms.train.trackers.trackio_run import TrackioRun
from algorithms.train.trackers.wandb_run import WandbRun
from algorithms.utils.files import json_text

TENSORBOARD = "tensorboard"
TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (WandbRun, MlflowRun, TrackioRun)}
FILE_NAME = "trackers.json"


def check_trackers(names: Sequence[str]) -> None:
    """Check, before anything is started, that the trackers of `run.trackers` are installed and can be reached.

    Raises:
        ConfigError: one is not; the line names the fix. It is a ServiceError if the tracker is installed.
    """
    for name in without_tensorboard(names):
        kind = _kind(name)
        if kind.package and not _is_installed(kind.package):
            what = f"-e '.[{name}]'" if name in TRACKERS else kind.package
            raise ConfigError(f"run.trackers: {name} is not installed; fix: pip install {what}")
        try:
            kind.check()
        except ConfigError:
            raise
        except Exception as error:
            raise _cannot_start(name, error) from error


def open_tracker(name: str, run: RunDirectory) -> Tracker:
    """Begin a tracked run, or continue the one that belongs to the run directory.

    Raises:
        ServiceError: the tracker cannot be started.
    """
    file = run.path / FILE_NAME
    try:
        known = json.loads(file.read_bytes()) if file.exists() else {}
        tracker = _kind(name).open(run, known.get(name) or {})
        tracker.name = name
        run.write_record(file, json_text(known | {name: tracker.identity()}))
    except Exception as error:  # a client's: there are many
        raise _cannot_start(name, error) from error
    return tracker


def without_tensorboard(names: Sequence[str]) -> list[str]:
    """Return the trackers that are not TensorBoard, each once."""
    return [name for name in dict.fromkeys(names) if name != TENSORBOARD]


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of `google.cloud` without `google`
        return False


def _kind(name: str) -> type[Tracker]:
    return load_plugin("run.trackers", name, Tracker, {TENSORBOARD: Tracker, **TRACKERS})


def _cannot_start(name: str, error: Exception) -> ServiceError:
    said = next(filter(None, str(error).splitlines()), type(error).__name__)
    fix = "see docs/guides/trackers.md for its environment variables" if name in TRACKERS else "correct the class"
    return ServiceError(
        f"run.trackers: {name} cannot be started ({said.rstrip('.')}); fix: {fix}, or leave {name} out of run.trackers"
    )
