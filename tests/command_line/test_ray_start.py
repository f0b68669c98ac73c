"""Ray starts where there are actors. If it does not, that is one line; in a long folder and under `uv run` it does."""

import os
import subprocess
import sys

import pytest
import ray
from ray._private import ray_constants

from algorithms.config.sections import RunSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight import ray_session
from algorithms.preflight.check import check
from algorithms.preflight.ray_session import SHORT, RayDidNotStart, start_ray, too_long

# A store of one byte: Ray takes no less than 75 MiB.
UNSTARTABLE = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "1"}


@pytest.mark.slow
def test_a_ray_that_does_not_start_is_one_line(command, surroundings, tmp_path):
    process = subprocess.run(
        command(f"run.dir={tmp_path}", "env_runners.num_env_runners=1"),
        env=surroundings | UNSTARTABLE,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 1, process.stderr
    last = process.stderr.splitlines()[-1]
    assert last.startswith("error: Ray did not start (") and "--resume" in last
    assert "Traceback" not in process.stderr


ENDED = """
import os
from algorithms.train.ray_watch import RayWatch

with RayWatch("--resume the/first", starting=True):
    pass
with RayWatch("--resume the/second", starting=True):
    os._exit(1)
"""


def test_a_process_that_ray_ends_has_a_line_of_another_one(surroundings):
    """Where its raylet dies, as of a full /dev/shm, Ray's compiled code ends the process at once and in silence."""
    ended = subprocess.run([sys.executable, "-c", ENDED], env=surroundings, capture_output=True, text=True, timeout=300)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: Ray ended this process without a word") and line.endswith("--resume the/second")


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


START = """
import ray
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.ray_session import start_ray

start_ray(GRPOConfig().env_runners(num_env_runners=1))
print(ray._private.worker._global_node.temp_dir)
print(ray.get_runtime_context().runtime_env.get("py_executable"))
"""


IN_ONE_PROCESS = """
import sys
import ray

ray.init = None  # whoever needs it fails
from algorithms.grpo.config import GRPOConfig

config = GRPOConfig().environment("r3env/Math-v0").rl_module(model="embedded:tiny").env_runners(max_response_tokens=8)
algorithm = config.training(queries_per_step=2, group_size=2).evaluation(samples=1, k=[1], limit=2).build_algo()
algorithm.train()
algorithm.evaluate()
algorithm.save_to_path(sys.argv[1])
algorithm.restore_from_path(sys.argv[1])
algorithm.stop()
print(ray.is_initialized())
"""


def test_what_runs_in_one_process_starts_no_ray(surroundings, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, str(tmp_path / "state")],
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.stdout.splitlines()[-1:] == ["False"], ended.stderr


def started(command, surroundings, **more):
    """What START prints, where Ray's files are and by what workers are started; and its standard error."""
    process = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=300, **more)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines(), process.stderr


def long_folder(tmp_path):
    return tmp_path / ("long" * 25)


def test_a_folder_that_is_short_enough_by_one_byte_is_taken(surroundings, tmp_path, monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    longest = max(n for n in range(1, 107) if not _too_long("x" * n, monkeypatch))
    session = f"session_2026-01-01_00-00-00_000000_{os.getpid()}"
    assert len(f"{'x' * longest}/ray/{session}/sockets/plasma_store") == 107, "what Linux allows"


def _too_long(folder, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", folder)
    return too_long()


def test_ray_s_own_variable_counts_before_the_general_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(long_folder(tmp_path)))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    assert too_long().startswith("TMPDIR: ")
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    assert too_long() == ""


def test_the_check_says_it_unless_a_cluster_is_joined(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(long_folder(tmp_path)))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = GRPOConfig().environment("r3env/Math-v0").rl_module(model="embedded:tiny")
    config.env_runners(max_response_tokens=64, num_env_runners=1)
    report = check(config, RunSettings())
    (line,) = [line for line in report.lines if line.startswith("Ray's folder")]
    assert "RAY_TMPDIR: " in line and report.enough
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not any(line.startswith("Ray's folder") for line in check(config, RunSettings()).lines)
    monkeypatch.delenv("RAY_ADDRESS")
    config.env_runners(num_env_runners=0)  # all in this process
    assert not any(line.startswith("Ray's folder") for line in check(config, RunSettings()).lines)


@pytest.fixture
def under_uv(tmp_path):
    """A command as `uv run` would start it: Ray looks for a parent process of that name."""
    (tmp_path / "run").write_text('"$@"; exit\n')

    def make(*command):
        return ["bash", "-c", 'exec -a uv bash run "$@"', "bash", *command]

    return make


def test_in_a_long_folder_and_under_uv_run_ray_starts_in_another_one_with_the_same_python(
    surroundings, under_uv, tmp_path
):
    folder = long_folder(tmp_path)
    folder.mkdir()
    variables = surroundings | {"RAY_TMPDIR": str(folder)}
    (where, executable), errors = started(under_uv(sys.executable, "-c", START), variables, cwd=tmp_path)
    assert where == SHORT and not list(folder.iterdir())
    (line,) = [line for line in errors.splitlines() if line.startswith(f"RAY_TMPDIR: {folder} is too long")]
    assert f"Ray takes {SHORT}; fix: " in line
    assert executable == "None", "no `uv run` for each worker"


def test_who_sets_the_variable_gets_what_ray_makes_of_uv(monkeypatch):
    name = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
    monkeypatch.setattr(ray_constants, name, True)  # as Ray reads it when it is imported
    for value, expected in (("1", True), (None, False)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        with ray_session._same_python():
            assert getattr(ray_constants, name) is expected
        assert getattr(ray_constants, name)
