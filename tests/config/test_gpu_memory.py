"""What each shipped layout asks of its GPUs, computed from the models' sizes, without the models."""

import pytest

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.config.placement import Placement, placement, transfer_kind
from algorithms.models.names import ModelFacts
from algorithms.preflight.memory import gpu_lines, least_gpu_bytes, reserved
from algorithms.r3_grpo.config import R3GRPOConfig

SMALL = ModelFacts("1.5B", "Qwen2ForCausalLM", 1_777_088_000, 28, 2, 128, 131_072)
LARGE = ModelFacts("7B", "Qwen2ForCausalLM", 7_615_616_512, 28, 4, 128, 131_072)
LAYOUTS = {
    "deepscaler_r1_1p5b_1gpu.yaml": (SMALL, 1, Placement.ONE_PROCESS, "in_process"),
    "deepscaler_r1_1p5b.yaml": (SMALL, 8, Placement.OWN_GPUS, "nccl"),
    "deepscaler_r1_1p5b_shared.yaml": (SMALL, 8, Placement.SHARED_GPUS, "ipc"),
    "deepscaler_r1_1p5b_16gpu.yaml": (SMALL, 16, Placement.OWN_GPUS, "nccl"),
    "deepscaler_r1_7b.yaml": (LARGE, 8, Placement.OWN_GPUS, "nccl"),
    "deepscaler_r1_7b_16gpu.yaml": (LARGE, 16, Placement.OWN_GPUS, "nccl"),
    "paper_r1_1p5b.yaml": (SMALL, 8, Placement.OWN_GPUS, "nccl"),
    "paper_r1_7b.yaml": (LARGE, 8, Placement.OWN_GPUS, "nccl"),
}
GPU = 80e9


def resolve_config(name, *overrides):
    return load(configs_folder() / name, overrides, R3GRPOConfig)[0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_shipped_layout_uses_its_gpus_and_leaves_room_on_them(name):
    model, gpus, where, kind = LAYOUTS[name]
    config = resolve_config(name)
    assert round(reserved(config).gpus, 6) == gpus
    assert placement(config) == where
    assert transfer_kind(config) == kind
    assert model.name in config.rl_module_settings.model
    assert 0.2 * GPU < least_gpu_bytes(config, model) < 0.9 * GPU
    lines = dict(gpu_lines(config, model))
    assert lines["placement"].startswith(where)
    assert "at least" in lines["each GPU"]


def test_every_layout_of_a_real_model_is_in_the_table():
    assert {path.name for prefix in ("deepscaler", "paper_") for path in configs_folder().glob(f"{prefix}*")} == {
        *LAYOUTS
    }


def test_a_learner_holds_sixteen_bytes_a_parameter_and_what_it_computes_with():
    config = resolve_config("deepscaler_r1_1p5b.yaml")
    assert least_gpu_bytes(config, SMALL) == 18 * SMALL.parameters
    assert least_gpu_bytes(config.rl_module(dtype="float32"), SMALL) == 16 * SMALL.parameters


def test_the_large_model_needs_shards():
    config = resolve_config("deepscaler_r1_7b.yaml")
    assert least_gpu_bytes(config, LARGE) == 4 * LARGE.parameters
    assert least_gpu_bytes(config.learners(sharding="none"), LARGE) > GPU


def test_a_shared_gpu_has_room_for_both():
    config = resolve_config("deepscaler_r1_1p5b_shared.yaml")
    learner = 18 * SMALL.parameters
    assert least_gpu_bytes(config, SMALL) == pytest.approx(learner / 0.55, rel=1e-6)
    assert least_gpu_bytes(config.env_runners(gpu_memory_utilization=0.05), SMALL) == pytest.approx(
        2 * SMALL.parameters / 0.05, rel=1e-6
    )


def test_the_shared_layout_goes_on_top_of_the_large_model():
    files = [configs_folder() / name for name in ("deepscaler_r1_7b.yaml", "deepscaler_r1_1p5b_shared.yaml")]
    config = load(files, [], R3GRPOConfig)[0]
    assert config.rl_module_settings.model.endswith("7B")
    assert placement(config) is Placement.SHARED_GPUS
    assert least_gpu_bytes(config, LARGE) == pytest.approx(2 * LARGE.parameters / 0.45, rel=1e-6)


def test_without_gpus_there_is_nothing_to_need():
    config = resolve_config("quickstart.yaml")
    assert least_gpu_bytes(config, SMALL) == 0
    assert [name for name, _ in gpu_lines(config, SMALL)] == ["placement"]
