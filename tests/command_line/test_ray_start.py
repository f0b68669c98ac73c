"""A Ray that does not start is one line."""

import subprocess

import pytest

# A store of one byte: Ray takes no less than 75 MiB.
UNSTARTABLE = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "1"}


@pytest.mark.slow
def test_a_ray_that_does_not_start_is_one_line(command, surroundings, tmp_path):
    process = subprocess.run(
        command(f"run.dir={tmp_path}"), env=surroundings | UNSTARTABLE, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 1, process.stderr
    last = process.stderr.splitlines()[-1]
    assert last.startswith("error: Ray did not start (") and "--resume" in last
    assert "Traceback" not in process.stderr
