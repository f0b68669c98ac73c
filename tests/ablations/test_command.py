"""What the command refuses before anything runs."""

import os

import pytest

from algorithms.config.errors import ConfigError
from benchmarks.ablation.command import DONE, WRONG_INPUT, locked, main


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


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The names of the runs that the command would start."""
    names: list[str] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(
        "benchmarks.ablation.command._train", lambda jobs, *_: names.extend(job.name for job in jobs) or {}
    )
    monkeypatch.setattr("benchmarks.ablation.command.write_results", lambda *_: "")
    return names


def ablation(tmp_path, *options, gpus="1"):
    run = ["--out", str(tmp_path / "out"), "--arms", "grpo", "--seeds", "2"]
    return main([*run, *options, f"learners.num_gpus_per_learner={gpus}"])


def test_runs_side_by_side_on_the_same_gpus_are_refused(tmp_path, trained, capsys):
    assert ablation(tmp_path, "--parallel", "2") == WRONG_INPUT
    error = capsys.readouterr().err
    assert "--parallel: 2 runs at a time would share the same GPUs, and grpo-0 reserves 1; fix: --tune" in error
    assert not trained and not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [[], ["--parallel", "1"], ["--parallel", "2", "--tune"]])
def test_runs_that_get_gpus_of_their_own_are_started(tmp_path, trained, options):
    assert ablation(tmp_path, *options) == DONE
    assert trained == ["grpo-0", "grpo-1"]


def test_runs_without_gpus_or_on_a_cluster_go_side_by_side(tmp_path, trained, monkeypatch):
    assert ablation(tmp_path, "--parallel", "2", gpus="0") == DONE
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert ablation(tmp_path, "--parallel", "2") == DONE
    assert len(trained) == 4
