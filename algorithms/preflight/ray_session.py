"""Start Ray, or join the cluster that a job was submitted to."""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._common.utils import get_default_ray_temp_dir
from ray._private import ray_constants
from ray._private.authentication import authentication_token_setup
from ray._private.runtime_env.uv_runtime_env_hook import _get_uv_run_cmdline

from algorithms.utils.errors import RunError
from algorithms.utils.machine import cores
from r3env.streams import NO_ROOM

_logger = logging.getLogger(__name__)
_UNDER_UV = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"

# A cluster that starts at the same time may take so long.
JOINING_S = 30.0
LOOPBACK_S = 10.0


class RayDidNotStart(RunError):
    """Ray could not be started on this machine, or there is no cluster at the given address."""


def needs_ray(config: Any) -> bool:
    """Return whether there is a cluster to join, or anything that runs in an actor rather than in this process."""
    runners = config.env_runners_settings
    actors = config.num_env_runners or runners.spares or config.num_learners or runners.reward_actor.replicas
    return bool(actors or os.environ.get("RAY_ADDRESS"))


def start_ray(config: Any) -> bool:
    """Initialize Ray if it is needed and not running; returns whether that was to join a cluster.

    Under `ray job submit` (or with RAY_ADDRESS set) this joins that cluster. On one machine it starts a local Ray
    with as many CPU slots as the actors ask for, and none where there are no actors: on a laptop actors share cores
    rather than wait for ever.

    Raises:
        RayDidNotStart: a local Ray did not start, of which what there is ends with the process; or no cluster is where
            RAY_ADDRESS says.
    """
    if ray.is_initialized():
        return False
    level = None if os.environ.get("R3_VERBOSE") else logging.ERROR
    quiet = {} if level is None else {"log_to_driver": False, "logging_level": level}
    if os.environ.get("RAY_ADDRESS"):
        _join(**quiet)
        return True
    if not needs_ray(config):
        if level is not None:
            logging.getLogger("ray").setLevel(level)  # as `ray.init` does
        return False
    runners = config.num_env_runners + config.env_runners_settings.spares
    rewards = config.env_runners_settings.reward_actor
    wanted = runners * config.num_cpus_per_env_runner + config.num_learners * _learner_cpus(config) + 1
    wanted += rewards.replicas * rewards.num_cpus
    # Not the Ray of another job on this machine, which `ray start` would have us join.
    _start_here(num_cpus=max(cores(), int(wanted + 0.999)), include_dashboard=False, **quiet)
    return False


@contextlib.contextmanager
def without_needless_ray(config: Any) -> Iterator[None]:
    """Keep RLlib's group of env runners from putting what its actors would read into Ray, where there are none."""
    if ray.is_initialized() or needs_ray(config):
        yield
        return
    module: Any = ray
    put, module.put = module.put, lambda value: None
    try:
        yield
    finally:
        module.put = put


def _join(**arguments: Any) -> None:
    address = os.environ["RAY_ADDRESS"]
    if getattr(ray_constants, _UNDER_UV) and _get_uv_run_cmdline():
        _logger.warning(
            "uv run: Ray will start this run's processes by `uv run` as well, in copies of the working directory; if "
            "they do not start: RAY_ENABLE_UV_RUN_RUNTIME_ENV=0, with the project installed on every machine"
        )
    try:
        _wait_for(address)
        _use_stored_token()
        ray.init(address="auto", **arguments)
    except Exception as error:  # see _start_here
        raise RayDidNotStart(
            f"RAY_ADDRESS: {address}: no cluster can be joined there ({_said(error)}); fix: start "
            "it, correct RAY_ADDRESS, set the RAY_AUTH_MODE and RAY_AUTH_TOKEN that it was started with, or unset "
            "RAY_ADDRESS to train on this machine alone"
        ) from error


def _wait_for(address: str) -> None:
    """Wait until somebody listens there, which Ray itself would do for a quarter of an hour.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if "/" in address or not port.isdigit():
        return  # Ray says what it makes of that
    deadline = time.monotonic() + JOINING_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def _use_stored_token() -> None:
    """Show a cluster the user's token, as `ray start --head` asks for it once there is one; an open cluster ignores it.

    A Ray that was started on this machine alone has left the token there.
    """
    if "RAY_AUTH_MODE" not in os.environ and (Path.home() / ".ray" / "auth_token").is_file():
        # Ray reads the variable once, when it is imported; it has no public way to read it again.
        authentication_token_setup._enable_token_auth()


def _start_here(**arguments: Any) -> None:
    if warning := too_long():
        _logger.warning(warning)
        arguments["_temp_dir"] = SHORT
    _require_loopback()
    folder = arguments.get("_temp_dir") or get_default_ray_temp_dir()
    try:
        with _same_python(), _without_hangups():
            ray.init(address="local", **arguments)
    except Exception as error:  # Ray has no type of its own for this
        raise RayDidNotStart(
            f"Ray did not start ({_said(error)}); {_fix(error, folder)}, then start again, or resume with --resume"
        ) from error


def _require_loopback() -> None:
    """Refuse a network namespace without loopback: Ray's processes would wait for each other for ever.

    Raises:
        RayDidNotStart: this process cannot reach itself.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=LOOPBACK_S).close()
    except OSError as error:
        raise RayDidNotStart(
            f"Ray cannot start: 127.0.0.1 cannot be reached ({error}); fix: bring the loopback interface up (ip link "
            "set lo up), then start again, or resume with --resume"
        ) from error


def _fix(error: Exception, folder: str) -> str:
    if isinstance(error, OSError) and error.filename and error.errno not in NO_ROOM:
        return (
            f"fix: let this user make and write {error.filename}, or set RAY_TMPDIR and HOME to folders that it may "
            "write"
        )
    return f"fix: free memory, cores and space in {folder}, see {folder}/session_latest/logs"


@contextlib.contextmanager
def _same_python() -> Iterator[None]:
    """Have workers run in this process's Python, also under `uv run`.

    There Ray would start each of them by another `uv run`, in a copy of the working directory without its `.venv`: they
    never come up. It reads the variable once, when it is imported, and has no public way to read it again.
    """
    before = getattr(ray_constants, _UNDER_UV)
    if _UNDER_UV not in os.environ:
        setattr(ray_constants, _UNDER_UV, False)
    try:
        yield
    finally:
        setattr(ray_constants, _UNDER_UV, before)


@contextlib.contextmanager
def _without_hangups() -> Iterator[None]:
    """Have Ray's processes outlive a terminal that is closed: the run is told as well, and still needs them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _said(error: Exception) -> str:
    return next(filter(None, str(error).splitlines()), type(error).__name__)


def _learner_cpus(config: Any) -> float:
    return 1.0 if config.num_cpus_per_learner == "auto" else float(config.num_cpus_per_learner)


SHORT = "/tmp/ray"  # Ray's own default, where no variable names another
_VARIABLES = ("RAY_TMPDIR", "TMPDIR")  # the first that is set counts
_MOST_BYTES = 107  # of a socket's path on Linux, see unix(7)
_APPENDED = "/ray/session_2026-01-01_00-00-00_000000_{pid}/sockets/plasma_store"  # to that folder, by Ray


def too_long() -> str:
    """Return a line where RAY_TMPDIR, or else TMPDIR, is too long for a Ray of this machine alone; else nothing."""
    name = next((name for name in _VARIABLES if name in os.environ), None)
    most = _MOST_BYTES - len(_APPENDED.format(pid=os.getpid()))
    if name is None or len(os.fsencode(os.environ[name])) <= most:
        return ""
    return (
        f"{name}: {os.environ[name]} is too long for the paths of Ray's sockets, so Ray takes {SHORT}; fix: a "
        f"RAY_TMPDIR of at most {most} bytes, if Ray's files must lie elsewhere"
    )
