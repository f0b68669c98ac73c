"""MLflow: a run on a tracking server, or in a local database."""

import csv
import io
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import yaml

from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.tracker import CONVERSATIONS, PROJECT, Outcome, Tracker, flat

_STATUS = {Outcome.FINISHED: "FINISHED", Outcome.FAILED: "FAILED", Outcome.INTERRUPTED: "KILLED"}
_MAX_PARAM, _PARAMS_AT_ONCE = 500, 100  # what every server takes


class MlflowRun(Tracker):
    """A run of MLflow. Each call has reached the server, or the database, when it returns."""

    name = package = "mlflow"
    address_variable = "MLFLOW_TRACKING_URI"

    def __init__(self, client: Any, run_id: str, own_uri: str, *, resumed: bool) -> None:
        self._client, self._id, self._own_uri, self._resumed = client, run_id, own_uri, resumed
        self._held: dict[str, set[int]] = {}
        if resumed:
            self.last_step = max(self._steps_of("run/wall_s"), default=-1)

    @classmethod
    def open(cls, run: RunDirectory, stored: Mapping[str, str]) -> Self:
        """Begin or continue a run; without MLFLOW_TRACKING_URI it continues where it began."""
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it lists the tables that it makes
        own_uri = "" if os.environ.get("MLFLOW_TRACKING_URI") else stored.get("uri") or mlflow.get_tracking_uri()
        client = mlflow.MlflowClient(tracking_uri=own_uri or None)
        if stored:
            client.update_run(stored["id"], status="RUNNING")
            return cls(client, stored["id"], own_uri, resumed=True)
        started = client.create_run(_experiment(client), run_name=os.environ.get("MLFLOW_RUN_NAME") or run.name)
        return cls(client, started.info.run_id, own_uri, resumed=False)

    def identity(self) -> dict[str, str]:
        """Return the run's id, and its server unless MLFLOW_TRACKING_URI names it, as it may hold a password."""
        return {"id": self._id} | ({"uri": self._own_uri} if self._own_uri else {})

    def holds(self, tag: str, step: int) -> bool:
        """Return whether the server has this point, or the table of this step."""
        if not self._resumed:
            return False
        if tag not in self._held:
            self._held[tag] = self._tables() if tag == CONVERSATIONS else self._steps_of(tag)
        return step in self._held[tag]

    def _steps_of(self, tag: str) -> set[int]:
        return {point.step for point in self._client.get_metric_history(self._id, metric_name(tag))}

    def _tables(self) -> set[int]:
        files = self._client.list_artifacts(self._id, CONVERSATIONS)
        return {int(found[1]) for file in files if (found := re.search(r"step-(\d+)\.csv$", file.path))}

    def settings(self, config: Mapping[str, Any]) -> None:
        """Log parameters, and config.yaml. Parameters logged before stay, as MLflow does not change any."""
        from mlflow.entities import Param

        known = self._client.get_run(self._id).data.params
        named = {metric_name(key): str(value)[:_MAX_PARAM] for key, value in flat(config).items()}
        params = [Param(name, value) for name, value in named.items() if name not in known]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._id, params=params[start : start + _PARAMS_AT_ONCE])
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        self._client.log_text(self._id, text, "config.yaml")

    def scalars(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Log metrics. One that is sent again with the same time is the same one."""
        from mlflow.entities import Metric

        time_ms = int(1000 * time_s)
        metrics = [Metric(metric_name(tag), float(value), time_ms, step) for tag, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def conversations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a csv file of this step, which MLflow shows as a table."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        self._client.log_text(self._id, text.getvalue(), f"{CONVERSATIONS}/step-{step:06d}.csv")

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        self._client.log_dict(self._id, dict(summary), "summary.json")

    def close(self, outcome: Outcome) -> None:
        """Set the run's status."""
        self._client.set_terminated(self._id, _STATUS[outcome])


def metric_name(tag: str) -> str:
    """Return a tag, or a setting's name, as MLflow takes it: `eval/pass@1` becomes `eval/pass_at_1`."""
    return re.sub(r"[^\w\-. :/]", "_", tag.replace("@", "_at_"), flags=re.ASCII)


def _experiment(client: Any) -> str:
    """Return the id of the experiment that the environment names, made where it is missing."""
    if found := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return found
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
    experiment = client.get_experiment_by_name(name)
    return str(experiment.experiment_id if experiment else client.create_experiment(name))
