"""Reads what trackers stored, past their clients where that is possible."""

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

from algorithms.train.trackers.wandb_run import _records


def mlflow_points(database: Path, key: str) -> list[tuple[int, float]]:
    with closing(sqlite3.connect(database, timeout=600)) as connection:
        return connection.execute("SELECT step, value FROM metrics WHERE key = ? ORDER BY step", (key,)).fetchall()


def mlflow_runs(database: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(database, timeout=600)) as connection:
        return connection.execute("SELECT name, status FROM runs").fetchall()


def mlflow_artifacts(database: Path) -> Path:
    with closing(sqlite3.connect(database, timeout=600)) as connection:
        ((folder,),) = connection.execute("SELECT artifact_uri FROM runs").fetchall()
    return Path(folder.removeprefix("file://"))


def mlflow_tables(database: Path) -> dict[str, list[dict[str, str]]]:
    files = sorted((mlflow_artifacts(database) / "conversations").glob("[!.]*"))  # a kill leaves a hidden half upload
    return {file.name: list(csv.DictReader(io.StringIO(file.read_text(), newline=""))) for file in files}


def trackio_rows(folder: Path) -> list[tuple[str, int, dict]]:
    """Run, step and content of each row, of all runs of the one project."""
    (database,) = folder.glob("*.db")
    with closing(sqlite3.connect(database, timeout=600)) as connection:
        found = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    return [(run, step, json.loads(metrics)) for run, step, metrics in found]


def trackio_points(folder: Path, key: str) -> list[tuple[int, float]]:
    return sorted((step, row[key]) for _, step, row in trackio_rows(folder) if key in row)


def wandb_records(run: Path, kind: str) -> list:
    """The records of a kind in all offline files of a run."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    records = [Record.FromString(content) for file in files for content in _records(file.read_bytes())]
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def wandb_history(run: Path) -> list[dict]:
    """The rows, each as wandb keeps it."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history.item}
        for history in wandb_records(run, "history")
    ]


def wandb_points(run: Path, key: str) -> list[tuple[int, float]]:
    return sorted((row["_step"], row[key]) for row in wandb_history(run) if key in row)
