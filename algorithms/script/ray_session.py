"""Start Ray, or join the cluster that a job was submitted to."""

import logging
import os
from typing import Any

import ray


def start_ray(config: Any) -> None:
    """Initialise Ray unless it is running.

    Under `ray job submit` (or with RAY_ADDRESS set) this joins that cluster. On one machine it starts a local Ray
    with as many CPU slots as the actors ask for: on a laptop actors share cores rather than wait for ever.
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
    ray.init(address="local", num_cpus=max(os.cpu_count() or 1, int(wanted + 0.999)), include_dashboard=False, **quiet)


def _learner_cpus(config: Any) -> float:
    return 1.0 if config.num_cpus_per_learner == "auto" else float(config.num_cpus_per_learner)
