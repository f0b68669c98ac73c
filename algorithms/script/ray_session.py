"""Start Ray, or join the cluster that a job was submitted to."""

import logging
import os
from typing import Any

import ray


class RayDidNotStart(RuntimeError):
    """Ray could not be started on this machine."""


def start_ray(config: Any) -> None:
    """Initialise Ray unless it is running.

    Under `ray job submit` (or with RAY_ADDRESS set) this joins that cluster. On one machine it starts a local Ray
    with as many CPU slots as the actors ask for: on a laptop actors share cores rather than wait for ever.

    Raises:
        RayDidNotStart: a local Ray did not start. What there is of it ends with the process.
    """
    if ray.is_initialized():
        return
    quiet: dict[str, Any] = {}
    if not os.environ.get("R3_VERBOSE"):
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(address="auto", **quiet)
        return
    wanted = config.num_env_runners * config.num_cpus_per_env_runner + config.num_learners * _learner_cpus(config) + 1
    # Not the Ray of another job on this machine, which `ray start` would have us join.
    _start_here(num_cpus=max(os.cpu_count() or 1, int(wanted + 0.999)), include_dashboard=False, **quiet)


def _start_here(**arguments: Any) -> None:
    try:
        ray.init(address="local", **arguments)
    except Exception as error:  # Ray has no type of its own for this
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise RayDidNotStart(
            f"Ray did not start ({said}); fix: see that memory, cores and /tmp have room, then start again, or go on "
            "with --resume"
        ) from error


def _learner_cpus(config: Any) -> float:
    return 1.0 if config.num_cpus_per_learner == "auto" else float(config.num_cpus_per_learner)
