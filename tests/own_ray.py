"""A Ray of the tests' own process."""

from collections.abc import Iterator
from contextlib import contextmanager

import ray


@contextmanager
def own_ray(num_cpus: int = 8, num_gpus: int | None = None) -> Iterator[None]:
    """Ray, unless another test's is running; more CPU slots than cores: actors share them. None: the GPUs there are."""
    if ray.is_initialized():
        yield
        return
    ray.init(
        address="local",  # whatever cluster the machine is in
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()
