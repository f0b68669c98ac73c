"""Trackers by name: which there are, whether they can start, and the tracked runs of a run directory."""

import importlib
import importlib.util
import json
from collections.abc import Sequence

from algorithms.config.errors import ConfigError, ServiceError
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
    for name in others(names):
        kind = TRACKERS[name]
        if importlib.util.find_spec(kind.package) is None:
            raise ConfigError(f"run.trackers: {name} is not installed; fix: pip install -e '.[{name}]'")
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
        tracker = TRACKERS[name].open(run, known.get(name) or {})
        run.write_record(file, json_text(known | {name: tracker.identity()}))
    except Exception as error:  # a client's: there are many
        raise _cannot_start(name, error) from error
    return tracker


def others(names: Sequence[str]) -> list[str]:
    """Return the trackers that are not TensorBoard, each once."""
    return [name for name in dict.fromkeys(names) if name != TENSORBOARD]


def _cannot_start(name: str, error: Exception) -> ServiceError:
    said = next(filter(None, str(error).splitlines()), type(error).__name__)
    return ServiceError(
        f"run.trackers: {name} cannot be started ({said.rstrip('.')}); fix: see docs/guides/trackers.md for its "
        f"environment variables, or leave {name} out of run.trackers"
    )
