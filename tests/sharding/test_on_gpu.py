"""Shards on a GPU, one learner, NCCL: the same numbers as the CPU's, and offloaded state on the CPU."""

from dataclasses import replace

import pytest
import torch

from .jobs import Setting, devices_held, gradients, load_and_train, steps, train_and_save
from .test_learners_as_one import largest_error

pytestmark = pytest.mark.gpu

ON_GPU = Setting(sharded=True, device="cuda")


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_gradients_are_the_cpus(group, offload, lora_rank):
    expected = gradients(0, Setting(lora_rank=lora_rank))
    setting = replace(ON_GPU, offload=offload, lora_rank=lora_rank)
    (found,) = group.run(1, gradients, setting, backend="nccl")
    assert largest_error(found, expected) < 1e-3  # tensor cores may round products


@pytest.mark.parametrize("offload", [False, True])
def test_bfloat16_trains(group, offload):
    setting = replace(ON_GPU, dtype=torch.bfloat16, offload=offload)
    ((norms, _),) = group.run(1, steps, setting, 3, backend="nccl")
    (expected, _) = steps(0, Setting(), 3)
    assert norms == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("offload", "place"), [(False, "cuda"), (True, "cpu")])
def test_offloaded_shards_and_moments_lie_on_the_cpu(group, offload, place):
    assert group.run(1, devices_held, replace(ON_GPU, offload=offload), backend="nccl") == [{place}]


@pytest.mark.parametrize("offload", [False, True])
def test_a_checkpoint_of_the_gpu_is_read_back(group, tmp_path, offload):
    setting = replace(ON_GPU, offload=offload)
    (expected,) = group.run(1, train_and_save, setting, tmp_path, backend="nccl")
    (found,) = group.run(1, load_and_train, setting, tmp_path, backend="nccl")
    assert largest_error(found, expected) < 1e-4
