"""A home that nobody can write to, no passwd entry, and folders that Ray cannot use."""

import os
import shutil
import subprocess

import pytest

from tests.odd_machines.conftest import SMALL, assert_complete

R3 = ("-m", "algorithms.r3_grpo")
# As a container's `--user`, which may read what root may: this checkout.
STRANGER = (
    "setpriv --reuid 54321 --regid 54321 --clear-groups --inh-caps +dac_read_search --ambient-caps +dac_read_search "
)


@pytest.fixture
def stranger(tmp_path_factory):
    """Starts a command line as a user without a passwd entry, and a folder of that user's."""
    folder = tmp_path_factory.mktemp("stranger")
    works = shutil.which("setpriv") and subprocess.run(["bash", "-c", STRANGER + "true"], timeout=60).returncode == 0
    if os.getuid() != 0 or not works:
        pytest.skip("only root can start a command as somebody else")
    for above in folder.parents[:2]:
        above.chmod(0o755)
    os.chown(folder, 54321, 54321)
    return STRANGER, folder


def test_a_check_names_a_home_that_does_not_exist_and_works(start):
    done = start('"$@"', *R3, "--check", HOME="/nonexistent/home")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("HOME: /nonexistent/home is no folder that can be written, ") and "; fix: " in line
    assert not os.path.exists("/nonexistent")


@pytest.mark.slow
def test_a_run_of_a_container_s_user_names_the_home_and_is_completed(start, stranger):
    switch, folder = stranger
    settings = [*SMALL, f"run.dir={folder}", "run.name=whole"]
    done = start(switch + '"$@"', *R3, *settings, HOME="/", USER=None, LOGNAME=None)
    assert done.returncode == 0, done.stderr
    warnings = [
        line for line in done.stderr.decode().splitlines() if line.startswith(("HOME: ", "mkdir", "Matplotlib"))
    ]
    assert len(warnings) == 1 and warnings[0].startswith("HOME: / is no folder that can be written, ")
    assert_complete(folder / "whole")


def test_a_folder_that_ray_cannot_use_is_named_and_no_run_folder_is_left(start, tmp_path):
    done = start('"$@"', *R3, *SMALL, f"run.dir={tmp_path / 'runs'}", RAY_TMPDIR="/dev/null")
    assert done.returncode == 1
    line = done.stderr.decode().splitlines()[-1]
    assert line.startswith("error: Ray did not start (") and "fix: let this user make and write /dev/null/ray" in line
    assert "free memory" not in line
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_working_folder_that_is_gone_is_one_line(start, tmp_path):
    gone = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone"
    done = start(f'{gone} && "$@"', *R3, "--help")
    assert done.returncode == 2
    assert done.stderr.decode() == "error: the working folder is gone; fix: cd to one that exists\n"
