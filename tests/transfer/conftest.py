"""A Ray with fake GPUs (the real ones in a run of GPU tests), runs of the embedded model, other weights for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from algorithms.grpo.config import GRPOConfig
from algorithms.models.names import resolve_model
from tests.own_ray import own_ray

GPUS = 4
BUCKET_BYTES = 100_000


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    """More CPU slots than cores, and GPUs for whoever only wants to be placed."""
    with own_ray(16, 0 if torch.cuda.is_available() else GPUS):
        yield


@pytest.fixture(scope="module")
def build(ray_session: None) -> Iterator[Callable[..., Any]]:
    """Builds algorithms on the embedded model and stops them at the end of the module."""
    with algorithms_stopped() as make:
        yield make


@pytest.fixture
def build_for_test(ray_session: None) -> Iterator[Callable[..., Any]]:
    """The same, stopped at the end of the test: the next one needs the GPU."""
    with algorithms_stopped() as make:
        yield make


def configuration(*, learners: int = 0, gpus: tuple[float, float] = (0, 0), **env_runners: Any) -> GRPOConfig:
    """The embedded model in float32 on both ends, also where CUDA makes bfloat16 the default."""
    return (
        GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model="embedded:tiny", dtype="float32")
        .env_runners(
            max_response_tokens=48,
            dtype="float32",
            num_cpus_per_env_runner=0.1,
            num_gpus_per_env_runner=float(gpus[0]),
            **env_runners,
        )
        .learners(num_learners=learners, num_cpus_per_learner=0.1, num_gpus_per_learner=float(gpus[1]))
        .training(lr=1e-3, group_size=4, queries_per_step=4)
        .debugging(seed=3)
    )


@contextmanager
def algorithms_stopped() -> Iterator[Callable[..., Any]]:
    built = []

    def make(**arguments: Any) -> Any:
        built.append(configuration(**arguments).build_algo())
        return built[-1]

    try:
        yield make
    finally:
        for algorithm in built:
            algorithm.stop()


@pytest.fixture(scope="session")
def other_policy() -> Any:
    """The embedded model, every weight changed a little; its head stays tied."""
    lm = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny"), dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return lm
