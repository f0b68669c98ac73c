"""Of two starts with --continue of one new name, one begins the run and the other is refused."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from algorithms.config.errors import ConfigError
from algorithms.train.run_directory import RunDirectory


def test_one_of_many_begins_the_run(tmp_path):
    ready = threading.Barrier(8)

    def begin(_):
        ready.wait(60)
        try:
            return RunDirectory.create(tmp_path, "mine", "run: {}\n", numbered=False).name
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        ended = list(threads.map(begin, range(8)))
    assert ended.count("mine") == 1
    assert all(
        text.startswith(f"run.name: {tmp_path / 'mine'} is no run that can be resumed")
        for text in ended
        if text != "mine"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_folder_that_is_no_run_is_refused_instead_of_begun_beside(start, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    done = start('"$@"', "-m", "algorithms.r3_grpo", "--continue", f"run.dir={tmp_path}", "run.name=mine")
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1].startswith(f"error: run.name: {tmp_path / 'mine'} is no run")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
