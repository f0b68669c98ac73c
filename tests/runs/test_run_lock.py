"""Two processes never train in the same run directory."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.train.run_directory import RunDirectory
from algorithms.utils.errors import CheckpointError

HOLDER = """
import sys
from pathlib import Path
from algorithms.train.run_directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_has_ended_however_it_ends(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    run = RunDirectory(tmp_path)
    with pytest.raises(CheckpointError, match=f"process {holder.pid} on .* trains here"), run.locked():
        pytest.fail("two hold the lock")
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with run.locked():
        assert (tmp_path / ".lock").is_file()


def test_it_can_be_taken_again_once_the_block_has_ended_by_an_error(tmp_path):
    run = RunDirectory(tmp_path)
    with pytest.raises(ZeroDivisionError), run.locked():
        raise ZeroDivisionError
    with run.locked(), pytest.raises(CheckpointError), RunDirectory(tmp_path).locked():
        pytest.fail("two hold the lock")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_a_file_system_without_locks_nothing_is_locked_and_runs_train(tmp_path, monkeypatch, code):
    def flock(descriptor, operation):
        raise OSError(code, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    run = RunDirectory(tmp_path)
    for _ in range(2):
        with run.locked(), run.locked():
            pass


@pytest.mark.parametrize("make", [Path.mkdir, lambda lock: lock.symlink_to("victim")])
def test_what_is_no_file_is_named_and_not_written_through(tmp_path, make):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    make(tmp_path / ".lock")
    with pytest.raises(CheckpointError, match=r"\.lock: cannot be used \("), RunDirectory(tmp_path).locked():
        pytest.fail("nothing was locked")
    assert victim.read_text() == "precious"
