"""What the command refuses before anything runs."""

import os

import pytest

from algorithms.configuration.errors import ConfigError
from benchmarks.ablation.command import WRONG_INPUT, locked, main


def test_a_folder_that_is_at_work_is_refused(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(ConfigError, match="another ablation, or a run of it, is at work"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_more_threads_than_cores_are_refused_with_the_number_that_fits(monkeypatch, capsys):
    cores = os.cpu_count() or 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit) as left:
        main(["--parallel", str(cores + 1)])
    assert left.value.code == WRONG_INPUT
    assert f"fix: --parallel {cores}, OMP_NUM_THREADS=1" in capsys.readouterr().err


def test_a_table_of_runs_that_are_not_there_is_refused(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "nothing"), "--table-only"]) == WRONG_INPUT
    assert f"--out: {tmp_path / 'nothing'} holds no runs; fix: " in capsys.readouterr().err


def test_a_wrong_setting_of_any_arm_ends_it_before_a_folder_is_made(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "out"), "--arm", "hot=dapo:training.lr=hot"]) == WRONG_INPUT
    assert "arm hot: training.lr: 'hot' is not a number" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
