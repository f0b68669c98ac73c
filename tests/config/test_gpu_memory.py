"""What each shipped layout asks of its GPUs, computed from the models' sizes, without the models."""

import re
from pathlib import Path

import pytest

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.config.placement import Placement, placement, transfer_kind
from algorithms.models.names import ModelFacts
from algorithms.preflight import check, memory
from algorithms.preflight.description import Line, _gpu_lines
from algorithms.preflight.memory import gpu_memory, gpu_shortage, least_gpu_bytes
from algorithms.preflight.resources import FoundGPUs, Resources, reserved
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
    assert "at least" in gpu_memory(config, model)


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


def test_a_shared_gpu_has_room_for_both_phases():
    config = resolve_config("deepscaler_r1_1p5b_shared.yaml")
    rest, update = 12 * SMALL.parameters, 18 * SMALL.parameters
    assert least_gpu_bytes(config, SMALL) == pytest.approx(rest / 0.55, rel=1e-6)
    sleeps = config.copy(copy_frozen=False).env_runners(gpu_memory_utilization=0.2)
    assert least_gpu_bytes(sleeps, SMALL) == pytest.approx(update, rel=1e-6)
    awake = config.copy(copy_frozen=False).env_runners(sleep_while_training=False)
    assert least_gpu_bytes(awake, SMALL) == pytest.approx(update / 0.55, rel=1e-6)
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
    assert [row[0] for row in _gpu_lines(config, SMALL)] == ["placement"]


@pytest.fixture
def machine(monkeypatch):
    """A machine whose smallest GPU has so many GiB; None: its driver does not answer."""

    def make(gib, where="this machine"):
        found = None if gib is None else FoundGPUs("580.65.06", int(gib * 2**30))
        monkeypatch.setattr(memory, "available", lambda: Resources(16, 8, where))
        monkeypatch.setattr(memory, "found_gpus", lambda: found)

    return make


def gpu_row(config, model):
    (row,) = (row for row in _gpu_lines(config, model) if row[0] == "each GPU")
    return row


def test_the_check_fails_and_the_start_warns_where_a_gpu_is_too_small(machine, caplog):
    config = resolve_config("deepscaler_r1_1p5b_1gpu.yaml")
    needed = least_gpu_bytes(config, SMALL) / 2**30
    machine(needed + 0.1)
    assert gpu_row(config, SMALL).enough
    check._warn_of_small_gpus(config, SMALL)
    assert not caplog.messages
    machine(24)
    row = gpu_row(config, SMALL)
    assert isinstance(row, Line) and not row.enough
    assert f"at least {needed:.1f} GiB" in row.text
    assert "the smallest GPU here has 24.0 GiB: NOT ENOUGH; fix: rl_module.lora_rank=16" in row.text
    check._warn_of_small_gpus(config, SMALL)
    (warning,) = caplog.messages
    assert "the smallest GPU here has 24.0 GiB" in warning and f"at least {needed:.1f} GiB" in warning
    assert gpu_row(config.rl_module(lora_rank=16), SMALL).enough


@pytest.mark.parametrize(("gib", "where"), [(None, "this machine"), (0, "this machine"), (24, "the cluster")])
def test_a_gpu_whose_size_is_unknown_is_not_too_small(machine, gib, where):
    machine(gib, where)
    assert gpu_shortage(resolve_config("deepscaler_r1_1p5b_1gpu.yaml"), SMALL) == ""


def test_the_guide_names_the_memory_that_the_check_prints_for_each_model():
    page = (Path(__file__).parents[2] / "docs/guides/own-model.md").read_text()
    rows = re.findall(r"^\| `(Qwen/\S+)` \| ([\d,]+) \| ([\d.]+) GiB \| ([\d.]+) GiB \|", page, re.MULTILINE)
    assert len(rows) == 3
    for name, parameters, full, lora in rows:
        model = ModelFacts(name, "Qwen3ForCausalLM", int(parameters.replace(",", "")), 28, 8, 128, 40_960)
        for rank, size in ((0, full), (16, lora)):
            config = resolve_config("own_model_1gpu.yaml", f"rl_module.model={name}", f"rl_module.lora_rank={rank}")
            assert f"at least {size} GiB" in gpu_memory(config, model)
