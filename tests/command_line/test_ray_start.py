"""A Ray that does not start is one line."""

import subprocess

import pytest
import ray

from algorithms.preflight import ray_session
from algorithms.preflight.ray_session import RayDidNotStart, start_ray

# A store of one byte: Ray takes no less than 75 MiB.
UNSTARTABLE = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "1"}


@pytest.mark.slow
def test_a_ray_that_does_not_start_is_one_line(command, surroundings, tmp_path):
    process = subprocess.run(
        command(f"run.dir={tmp_path}"), env=surroundings | UNSTARTABLE, capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 1, process.stderr
    last = process.stderr.splitlines()[-1]
    assert last.startswith("error: Ray did not start (") and "--resume" in last
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere.invalid:6379", "127.0.0.1:99999", "not an address"])
def test_an_address_without_a_cluster_is_one_line_that_names_it(monkeypatch, address):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_session, "JOINING_S", 0.0)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # joining would set it for the tests that follow
    with pytest.raises(RayDidNotStart) as raised:
        start_ray(None)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"RAY_ADDRESS: {address}: no cluster can be joined there (") and "; fix: start it, " in line
