"""Trackers that cannot start end the command in one line; those that fail later do not."""

import json
import shutil
import socket
import sqlite3
import sys
import time
import types
from contextlib import closing

import pytest

from algorithms.config.errors import ConfigError
from algorithms.train.main import main
from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.mlflow_run import metric_name
from algorithms.train.trackers.registry import TRACKERS, check_trackers
from algorithms.train.trackers.tracker import Outcome, Tracker
from algorithms.train.trackers.wandb_run import is_complete
from tests.docs.pages import DOCS, fenced

from .stores import mlflow_artifacts, mlflow_points, mlflow_runs, wandb_points, wandb_records


@pytest.fixture
def closed_port():
    """A port of this machine on which nobody listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def error_of(capsys, *arguments):
    code = main("grpo", list(arguments))
    line = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and line.startswith("error: run.trackers: "), line
    return line


@pytest.mark.parametrize("name", TRACKERS)
def test_one_that_is_not_installed_is_named_with_the_command_that_installs_it(name, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(TRACKERS[name], "package", "no_such_package")
    line = error_of(capsys, f"run.trackers=[{name}]", f"run.dir={tmp_path}")
    assert f"{name} is not installed; fix: pip install -e '.[{name}]'" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "variable"),
    [("mlflow", "MLFLOW_TRACKING_URI"), ("trackio", "TRACKIO_SERVER_URL"), ("wandb", "WANDB_BASE_URL")],
)
def test_a_server_that_is_down_ends_the_command_before_a_run_directory_is_made(
    name, variable, closed_port, monkeypatch, capsys, tmp_path
):
    pytest.importorskip(name)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv(variable, f"http://127.0.0.1:{closed_port}")
    line = error_of(capsys, f"run.trackers=[{name}]", f"run.dir={tmp_path}")
    assert f"{name} cannot be started" in line and "refused" in line and "docs/guides/trackers.md" in line
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def logged_out(monkeypatch, tmp_path):
    """No log-in of wandb's anywhere; a folder for what stands in for one."""
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_log_in_wandb_ends_the_command_before_anything_starts(logged_out, capsys):
    line = error_of(capsys, "run.trackers=[wandb]", f"run.dir={logged_out}/runs")
    assert line.startswith("error: run.trackers: wandb has no log-in for https://")
    assert "; fix: wandb login, or WANDB_API_KEY=…, or WANDB_MODE=offline" in line
    assert not (logged_out / "runs").exists()


@pytest.mark.parametrize("way", ["key", "netrc", "offline", "disabled"])
def test_who_is_logged_in_or_offline_is_not_stopped(way, logged_out, monkeypatch):
    if way == "key":
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    elif way == "netrc":
        monkeypatch.setenv("WANDB_BASE_URL", "https://tracker.invalid")
        (logged_out / "netrc").write_text(f"machine tracker.invalid login user password {'k' * 40}\n")
        monkeypatch.setattr(Tracker, "check", classmethod(lambda kind: None))  # nobody answers at .invalid
    else:
        monkeypatch.setenv("WANDB_MODE", way)
    check_trackers(["wandb"])


@pytest.fixture
def own_module(monkeypatch):
    """Makes a module from its code."""

    def make(name, code):
        module = types.ModuleType(name)
        exec(code, vars(module))
        monkeypatch.setitem(sys.modules, name, module)

    return make


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wandbb", "is not one of tensorboard, wandb, mlflow, trackio, or a class; did you mean wandb?"),
        ("trackers_of_mine:File", "has no class File derived from algorithms.train.trackers.tracker.Tracker"),
        (
            "trackers_of_mine:Bare",
            "trackers_of_mine:Bare' does not define open, scalars; fix: write it, as Tracker says",
        ),
        ("trackers_of_mine:Absent", "trackers_of_mine:Absent is not installed; fix: pip install no_such_package"),
        (
            "trackers_of_mine:Failing",
            "cannot be started (no disk); fix: correct the class, or leave trackers_of_mine:F",
        ),
    ],
)
def test_what_is_no_tracker_is_a_wrong_value(name, line, own_module):
    own_module(
        "trackers_of_mine",
        "from algorithms.train.trackers.tracker import Tracker\n"
        "class Bare(Tracker):\n    def holds(self, tag, step): return False\n"
        "class Whole(Bare):\n    def open(): pass\n    def scalars(): pass\n"
        "class Absent(Whole):\n    package = 'no_such_package'\n"
        "class Failing(Whole):\n    @classmethod\n    def check(cls): raise OSError('no disk')\n",
    )
    with pytest.raises(ConfigError) as raised:
        check_trackers([name])
    assert str(raised.value).startswith("run.trackers: ") and line in str(raised.value)


def test_the_tracker_of_the_page_gets_every_number_once_also_of_a_killed_and_resumed_run(own_module, tmp_path):
    (code,) = fenced(DOCS / "guides/trackers.md", "python")
    own_module("mine", code)
    check_trackers(["tensorboard", "mine:CsvFile"])
    run = RunDirectory.create(tmp_path, "run", "")
    for last in (0, 1):
        with Recorder(run, last, trackers=["mine:CsvFile"]) as recorder:
            if last:
                recorder.resume_settings({"algorithm": "grpo"}, changed=False)
            recorder.record({"step": last + 1, "reward/mean": 0.5, "eval/pass@1": 0.25})
        if not last:
            (run.path / "numbers.csv").write_text("1,reward/mean,0.5\n1,eval/pa")
    steps = [f"{step},{line}" for step in (1, 2) for line in ("reward/mean,0.5", "eval/pass@1,0.25")]
    assert (run.path / "numbers.csv").read_text().splitlines() == steps


def test_without_trackers_the_run_directory_is_all_that_there_is(tmp_path):
    run = RunDirectory.create(tmp_path, "run", "")
    with Recorder(run, trackers=[]) as recorder:
        recorder.record_settings({"algorithm": "grpo"})
        recorder.record({"step": 1, "reward/mean": 0.5})
        recorder.record_evaluation(1, {"eval/pass@1": 0.5})
    files = {"config.yaml", "manifest.json", "metrics.jsonl", "rollouts", "checkpoints"}
    assert {path.name for path in run.path.iterdir()} == files
    check_trackers(["tensorboard"])


def test_a_run_that_gets_a_tracker_later_is_in_it_from_its_beginning(offline):
    run = RunDirectory.create(offline, "run", "")
    with Recorder(run, trackers=[]) as recorder:
        for step in (1, 2):
            recorder.record({"step": step, "reward/mean": step / 2})
    run.write_evaluation({"before": {"step": 0, "metrics": {"pass@1": 0.25}}})
    for last in (2, 3):
        with Recorder(run, last, trackers=["wandb"]) as recorder:
            recorder.resume_settings({"algorithm": "grpo"}, changed=False)
            recorder.record({"step": last + 1, "reward/mean": (last + 1) / 2})
    assert wandb_points(run.path, "reward/mean") == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    assert wandb_points(run.path, "eval/pass@1") == [(0, 0.25)]


@pytest.mark.slow  # MLflow makes its tables
def test_a_database_that_breaks_during_a_run_does_not_end_it_and_misses_nothing_once_it_is_whole(offline, caplog):
    database, run = offline / "mlflow.db", RunDirectory.create(offline, "run", "")
    recorder = Recorder(run, trackers=["mlflow"])
    recorder.record_settings({"algorithm": "grpo", "run": {"seed": 1}})
    recorder.record({"step": 1, "run/wall_s": 0.5})
    deadline = time.monotonic() + 600
    with closing(sqlite3.connect(database, timeout=600)) as connection:
        while not connection.execute("SELECT * FROM metrics").fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        connection.execute("ALTER TABLE metrics RENAME TO elsewhere")
        for step in (2, 3):
            recorder.record({"step": step, "run/wall_s": step / 2})
        while not caplog.records:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        connection.execute("ALTER TABLE elsewhere RENAME TO metrics")
    recorder.close()
    (warning,) = [record.getMessage() for record in caplog.records if "run.trackers" in record.getMessage()]
    assert "mlflow failed" in warning and "the run continues" in warning
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
    assert mlflow_points(database, "run/wall_s") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    # Made again with other settings, its steps stay as they were, and are said to.
    run.truncate_after(1)
    with Recorder(run, 1, trackers=["mlflow"]) as recorder:
        recorder.resume_settings({"algorithm": "grpo", "run": {"seed": 2}}, changed=True)
        recorder.record({"step": 2, "run/wall_s": 9.0})
        recorder.record({"step": 4, "run/wall_s": 2.0})
    assert "mlflow keeps the values of steps 2 to 3 from before the settings changed" in caplog.text
    assert mlflow_points(database, "run/wall_s") == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    assert mlflow_runs(database) == [("run", "FINISHED")]
    # A tracked run that is gone is not begun anew in silence.
    (run.path / "trackers.json").write_text(json.dumps({"mlflow": {"id": "0" * 32}}))
    with pytest.raises(ConfigError, match="run.trackers: mlflow cannot be started"):
        Recorder(run, 1, trackers=["mlflow"])
    shutil.rmtree(run.path)


def test_tags_become_names_that_mlflow_takes():
    assert metric_name("eval/pass@1") == "eval/pass_at_1"
    assert metric_name("reward/mean") == "reward/mean"
    assert metric_name("méthode/α>0") == "m_thode/__0"


def test_mlflow_gets_all_settings_where_the_name_of_one_is_none_that_it_takes(offline):
    run = RunDirectory.create(offline, "run", "")
    with Recorder(run, 0, trackers=["mlflow"]) as recorder:
        recorder.record_settings({"run": {"seed": 1, "stop": {"eval/pass@1": 0.8}}})
    database = offline / "mlflow.db"
    with closing(sqlite3.connect(database)) as connection:
        stored = dict(connection.execute("SELECT key, value FROM params"))
    assert stored == {"run.seed": "1", "run.stop.eval/pass_at_1": "0.8"}
    assert (mlflow_artifacts(database) / "config.yaml").is_file()


def test_a_session_of_wandb_is_in_its_file_when_it_is_closed(offline):
    run = RunDirectory.create(offline, "run", "")
    for step in range(5):
        with Recorder(run, step, trackers=["wandb"]) as recorder:
            recorder.record({"step": step + 1, "reward/mean": 0.5})
        assert wandb_points(run.path, "reward/mean")[-1] == (step + 1, 0.5)
    Recorder(run, 5, trackers=["wandb"]).close(Outcome.FAILED)
    assert [end.exit_code for end in wandb_records(run.path, "exit")] == [0] * 5 + [1]
    whole = max(run.path.rglob("*.wandb"))
    assert is_complete(whole)
    cut = offline / "cut.wandb"
    assert not is_complete(cut)
    for length in (0, 7, whole.stat().st_size - 1):
        cut.write_bytes(whole.read_bytes()[:length])
        assert not is_complete(cut)
