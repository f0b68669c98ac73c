"""A Ray of the tests' own process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

FIRST_FAKE_GPU = 100


@contextmanager
def own_ray(num_cpus: int = 8, fake_gpus: int = 0) -> Iterator[None]:
    """Ray, unless another test's is running; more CPU slots than cores: actors share them.

    Fake GPUs have the ids from 100 on, which no machine has: whoever gets one finds nothing there.
    """
    if ray.is_initialized():
        yield
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if fake_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(FIRST_FAKE_GPU + index) for index in range(fake_gpus))
    _start(num_cpus, fake_gpus)
    try:
        yield
    finally:
        ray.shutdown()
        if fake_gpus and visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        elif fake_gpus:
            del os.environ["CUDA_VISIBLE_DEVICES"]


def _start(num_cpus: int, fake_gpus: int) -> None:
    """Start Ray; what does not appear in its half a minute on a busy machine is tried again."""
    assert not ray.is_initialized()
    for tries_left in (2, 1, 0):
        try:
            ray.init(
                address="local",  # whatever cluster the machine is in
                num_cpus=num_cpus,
                num_gpus=fake_gpus or None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
            return
        except Exception:
            ray.shutdown()
            if not tries_left:
                raise
