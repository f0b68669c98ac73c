"""Start Ray, or join the cluster that a job was submitted to."""

import logging
import os
from typing import Any

import ray

STARTS = 3


class RayDidNotStart(RuntimeError):
    """Ray could not be started on this machine."""


def start_ray(config: Any) -> None:
    """Initialise Ray unless it is running.

    Under `ray job submit` (or with RAY_ADDRESS set) this joins that cluster. On one machine it starts a local Ray
    with as many CPU slots as the actors ask for: on a laptop actors share cores rather than wait for ever.

    Raises:
        RayDidNotStart: a local Ray did not start, though it was tried again.
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
    """Ray gives a node half a minute to come up, which on a busy machine may be too short for the first attempt."""
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(address="local", **arguments)
            return
        except Exception as error:  # it has no type of its own for this
            ray.shutdown()
            if attempt == STARTS:
                said = next(iter(str(error).splitlines()), type(error).__name__)
                raise RayDidNotStart(
                    f"Ray did not start in {STARTS} attempts: {said}; fix: see that memory, cores and /tmp have room, "
                    "then start again, or go on with --resume"
                ) from error


def _learner_cpus(config: Any) -> float:
    return 1.0 if config.num_cpus_per_learner == "auto" else float(config.num_cpus_per_learner)
