import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.train.rollout_files import write_rollouts
from algorithms.train.run_directory import RunDirectory, is_in_job_copy
from algorithms.utils.files import write_json


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "runs", "first", "run: {}\n")


def test_a_new_run_has_its_config_and_folders(run):
    assert run.config_file.read_text() == "run: {}\n"
    assert run.rollouts_folder.is_dir()
    assert run.checkpoints_folder.is_dir()
    assert run.read_metrics() == []


def test_a_taken_name_gets_a_number_and_the_old_run_stays(run):
    second = RunDirectory.create(run.path.parent, "first", "second\n")
    third = RunDirectory.create(run.path.parent, "first", "third\n")
    assert [second.name, third.name] == ["first-2", "first-3"]
    assert run.config_file.read_text() == "run: {}\n"


def test_even_a_file_of_that_name_is_not_overwritten(tmp_path):
    (tmp_path / "name").write_text("mine")
    assert RunDirectory.create(tmp_path, "name", "").name == "name-2"
    assert (tmp_path / "name").read_text() == "mine"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a\0b"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=r"^run\.name: .*; fix: "):
        RunDirectory.create(tmp_path, name, "")


@pytest.mark.parametrize("parent", ["file", "file/below", "dangling", "/proc/x", "~nobody-of-that-name/x", "a\0b"])
def test_a_parent_that_can_hold_no_folder_is_refused_in_one_line(tmp_path, parent):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    named = parent if parent[0] in "/~" else str(tmp_path / parent)
    with pytest.raises(ConfigError) as raised:
        RunDirectory.create(named, "x", "")
    line = str(raised.value)
    assert line.startswith(f"run.dir: {named!r}: no run can be created there (") and "; fix: " in line


def test_a_folder_that_may_only_be_read_is_refused(tmp_path, monkeypatch):
    def refused(path, *_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.mkdir", refused)
    with pytest.raises(ConfigError, match=r"^run\.dir: .*\(Permission denied\); fix: "):
        RunDirectory.create(tmp_path, "x", "")


def test_a_tilde_is_the_users_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert RunDirectory.create("~/runs", "x", "").path == tmp_path / "home" / "runs" / "x"
    assert not (tmp_path / "~").exists()


@pytest.fixture
def synced(monkeypatch):
    """Paths that have been brought to the disk, by their resolved name."""
    paths, fsync = [], os.fsync

    def note(descriptor):
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    return paths


def test_the_name_of_a_new_run_is_on_the_disk(tmp_path, synced):
    RunDirectory.create(tmp_path / "new" / "runs", "x", "")
    assert {tmp_path, tmp_path / "new", tmp_path / "new" / "runs"} <= set(synced)


def test_a_run_that_cannot_be_made_whole_leaves_no_folder_and_no_name_taken(tmp_path, monkeypatch):
    def full(run, config_yaml):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_config", full)
        with pytest.raises(OSError, match="No space left on device"):  # the command says to make room
            RunDirectory.create(tmp_path, "x", "")
    assert list(tmp_path.iterdir()) == []
    assert RunDirectory.create(tmp_path, "x", "").name == "x"


def test_of_two_that_take_a_name_at_once_one_gets_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("os.path.lexists", lambda path: False)  # as it looked a moment ago
    assert [RunDirectory.create(tmp_path, "x", text).name for text in ("first", "second")] == ["x", "x-2"]
    assert (tmp_path / "x" / "config.yaml").read_text() == "first"


def test_the_name_of_a_new_file_of_metrics_is_on_the_disk(run, synced):
    run.append_metrics({"step": 1})
    assert synced == [run.metrics_file, run.path]
    run.append_metrics({"step": 2})
    assert synced[2:] == [run.metrics_file]


def test_opening_finds_what_was_written(run):
    run.append_metrics({"step": 1, "reward/mean": 0.5})
    assert RunDirectory.open(run.path).read_metrics() == [{"step": 1, "reward/mean": 0.5}]


def test_opening_what_is_no_run_says_so(tmp_path):
    with pytest.raises(ValueError, match="no such run folder"):
        RunDirectory.open(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="not a run directory: it has no config.yaml"):
        RunDirectory.open(tmp_path)


def test_rows_are_strict_json_one_a_line(run):
    run.append_metrics({"step": 1, "a": math.nan, "b": math.inf, "c": np.float32(0.5), "d": np.int64(3), "e": "vllm"})
    run.append_metrics({"step": np.int64(2), "a": True})
    lines = run.metrics_file.read_text().splitlines()
    assert json.loads(lines[0], parse_constant=pytest.fail) == {
        "step": 1, "a": None, "b": None, "c": 0.5, "d": 3, "e": "vllm",
    }  # fmt: skip
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_a_value_that_is_no_number_is_refused_and_leaves_no_trace(run):
    with pytest.raises(TypeError, match="ndarray"):
        run.append_metrics({"step": 1, "a": np.zeros(2)})
    assert run.read_metrics() == []


@pytest.mark.parametrize("step", [2, 1, 0, None, "3"])
def test_a_step_is_written_once_and_in_order(run, step):
    run.append_metrics({"step": 2})
    with pytest.raises(ValueError, match="can't follow step 2"):
        RunDirectory.open(run.path).append_metrics({"step": step})
    assert len(run.read_metrics()) == 1


def test_a_torn_last_line_is_neither_read_nor_continued(run):
    run.append_metrics({"step": 1})
    with run.metrics_file.open("a") as file:
        file.write('{"step": 2, "rew')
    later = RunDirectory.open(run.path)
    assert later.read_metrics() == [{"step": 1}]
    later.append_metrics({"step": 2, "reward/mean": 1.0})
    assert later.read_metrics() == [{"step": 1}, {"step": 2, "reward/mean": 1.0}]


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"a": 1}', '{"step": 2, "a"', ""])
def test_a_broken_line_in_the_middle_is_named(run, line):
    run.metrics_file.write_text('{"step": 1}\n' + line + '\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: "):
        run.read_metrics()


def test_resuming_drops_later_rows_and_rollouts(run):
    for step in range(1, 6):
        run.append_metrics({"step": step})
        write_rollouts(run.rollout_file(step), [])
    with run.metrics_file.open("a") as file:
        file.write('{"st')
    run.truncate_after(3)
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
    assert sorted(file.name for file in run.rollouts_folder.iterdir()) == [
        f"step-00000{step}.parquet" for step in (1, 2, 3)
    ]
    run.append_metrics({"step": 4})
    assert run.read_metrics()[-1] == {"step": 4}


def test_resuming_from_before_the_first_step_leaves_nothing(run):
    run.append_metrics({"step": 1})
    run.truncate_after(0)
    assert run.read_metrics() == []
    assert run.metrics_file.read_bytes() == b""


def test_truncating_a_run_without_metrics_is_no_error(run):
    run.truncate_after(5)
    assert run.read_metrics() == []


def test_json_files_are_replaced_whole(run):
    run.write_summary({"steps": 1, "eval": {"before": {"pass@1": math.nan}}})
    run.write_summary({"steps": 2})
    assert json.loads(run.summary_file.read_text()) == {"steps": 2}
    run.write_evaluation({"problems": [{"uid": "a", "correct": np.float64(0.25)}]})
    assert json.loads(run.evaluation_file.read_text())["problems"][0]["correct"] == 0.25


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_json(path, {"steps": 1})

    def full(_descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"steps": 2})
    assert json.loads(path.read_text()) == {"steps": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_in_a_jobs_copy_of_the_working_directory_is_known(tmp_path, monkeypatch):
    copy = tmp_path / "session_1" / "runtime_resources" / "working_dir_files" / "_ray_pkg_0123"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    assert is_in_job_copy(Path("runs/run")) and not is_in_job_copy(tmp_path / "runs" / "run")


@pytest.mark.parametrize(("within", "given"), [("", "."), ("checkpoints", ".."), ("..", "first")])
def test_a_run_has_its_name_wherever_it_is_named_from(run, within, given, monkeypatch):
    monkeypatch.chdir(run.path / within)
    assert RunDirectory(Path(given)).name == "first"
