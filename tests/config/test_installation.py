"""What a run needs of driver, CUDA and vLLM is said in a line before anything starts."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.sections import RunSettings
from algorithms.models.names import ModelFacts
from algorithms.preflight import gpus, memory, resources
from algorithms.preflight.check import check, validate_start
from algorithms.preflight.gpus import GPU, FoundGPUs, driver_problem, parse_gpus
from algorithms.preflight.resources import Resources, gpu_problem
from algorithms.r3_grpo.config import R3GRPOConfig


@pytest.fixture
def config(tiny_model, problems):
    return (
        R3GRPOConfig()
        .environment(data=str(problems), instruction="")
        .rl_module(model=str(tiny_model))
        .env_runners(max_response_tokens=64)
    )


def report(config):
    """The check's lines by their names."""
    return {line[:16].strip(): line[16:] for line in check(config, RunSettings()).lines}


@pytest.fixture
def machine(monkeypatch):
    """A machine with GPUs, as torch and the driver see it."""

    def make(*, gpus, driver="580.65.06", cuda="13.0", where="this machine", kinds=()):
        for module in ("check", "description", "fitting", "resources"):
            monkeypatch.setattr(f"algorithms.preflight.{module}.available", lambda: Resources(16, gpus, where))
        monkeypatch.setattr(resources, "found_gpus", lambda: FoundGPUs(driver, 80 * 2**30, tuple(kinds)))
        for module in ("gpus", "resources"):
            monkeypatch.setattr(f"algorithms.preflight.{module}.toolkit", lambda: cuda)

    return make


@pytest.mark.parametrize(
    ("driver", "cuda", "problem"),
    [
        ("580.65.06", "13.0", None),
        ("595.10", "13.2", None),
        ("575.57.08", "13.0", "CUDA 13.0, which torch and vLLM are built with, needs driver 580 or later"),
        ("525.60.13", "12.8", None),
        ("470.82", "12.1", "needs driver 525 or later"),
        ("580.65.06", None, "torch is a build for the CPU"),
        ("unknown", "13.0", None),
        ("580.65.06", "99.0", None),
    ],
)
def test_each_cuda_needs_its_driver(driver, cuda, problem):
    found = driver_problem(driver, cuda)
    assert found is None if problem is None else found is not None and problem in found


def test_what_nvidia_smi_lists_is_read():
    assert parse_gpus("550.54.15, 81559\n550.54.15, 40960\n") == FoundGPUs("550.54.15", 40960 * 2**20)
    assert parse_gpus("550.54.15, [N/A]\n") == FoundGPUs("550.54.15", 0)
    assert parse_gpus("No devices were found\n") is None
    listing = "580.65.06, 16384, 7.0, Tesla V100-SXM2-16GB\n580.65.06, 24564, 8.9, NVIDIA GeForce RTX 4090\n"
    both = (V100, GPU("NVIDIA GeForce RTX 4090", (8, 9)))
    assert parse_gpus(listing) == FoundGPUs("580.65.06", 16384 * 2**20, both)


@pytest.mark.parametrize(
    ("visible", "asked"), [("1", "-i 1"), ("GPU-8a5c,GPU-77", "-i GPU-8a5c,GPU-77"), ("-1", ""), ("", "")]
)
def test_only_visible_gpus_are_asked_for(tmp_path, monkeypatch, visible, asked):
    command = tmp_path / "nvidia-smi"
    command.write_text('#!/bin/sh\nshift\necho "$*" > "$0.asked"\necho "580.65.06, 16384, 8.9, L4"\n')
    command.chmod(0o755)
    monkeypatch.setattr(gpus, "_NVIDIA_SMI", (str(command),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus._listed_gpus.__wrapped__().gpus == (GPU("L4", (8, 9)),)
    assert (tmp_path / "nvidia-smi.asked").read_text().strip() == asked


def test_a_driver_that_knows_a_gpu_by_another_name_is_asked_for_all(tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\ncase \"$*\" in *-i*) exit 6;; *) echo '580.65.06, 16384, 8.9, L4';; esac\n")
    command.chmod(0o755)
    monkeypatch.setattr(gpus, "_NVIDIA_SMI", (str(command),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a5c")
    assert gpus._listed_gpus.__wrapped__().gpus == (GPU("L4", (8, 9)),)


def test_a_driver_that_knows_no_compute_capability_still_names_its_gpus(tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\ncase \"$*\" in *compute_cap*) exit 2;; *) echo '450.80.02, 16384';; esac\n")
    command.chmod(0o755)
    monkeypatch.setattr(gpus, "_NVIDIA_SMI", (str(command),))
    assert gpus._listed_gpus.__wrapped__() == FoundGPUs("450.80.02", 16384 * 2**20)


V100, T4 = GPU("Tesla V100-SXM2-16GB", (7, 0)), GPU("Tesla T4", (7, 5))


def test_a_gpu_that_torch_has_no_code_for_is_refused_by_name_before_anything_starts(config, machine):
    config.learners(num_gpus_per_learner=1)
    machine(gpus=1, kinds=[V100])
    text = (
        r"learners\.num_gpus_per_learner: torch \S+ has no code for Tesla V100-SXM2-16GB \(compute capability 7\.0\); "
    )
    with pytest.raises(ConfigError, match=f"^{text}fix: a GPU of capability 7.5 or higher"):
        validate_start(config)
    assert re.match(f"NOT USABLE: {text}", report(config)["GPU"]) and not check(config, RunSettings()).enough
    machine(gpus=2, kinds=[T4, V100])  # one suffices, and the other may be for a screen
    validate_start(config)
    machine(gpus=1, kinds=[V100], cuda="12.8")
    validate_start(config)
    machine(gpus=1, kinds=[V100], where="the cluster")
    assert gpu_problem(config) is None


def test_the_code_that_torch_was_built_with_decides(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_100a", "sm_80", "sm_90a", "compute_120"])
    assert gpus.least_capability() == (8, 0)


def test_vllm_takes_float16_where_a_gpu_has_no_bfloat16(config, machine):
    config.env_runners(engine="vllm", dtype="bfloat16", gpu_memory_utilization=0.4).learners(num_gpus_per_learner=1)
    machine(gpus=1, kinds=[T4])
    with pytest.raises(
        ConfigError, match=r"^env_runners\.dtype: .* Tesla T4 .*; fix: env_runners\.dtype=float16, or float32 for .*"
    ):
        validate_start(config)
    in_float16 = config.copy(copy_frozen=False).env_runners(dtype="float16")
    validate_start(in_float16)
    learner = r"^rl_module\.dtype: Tesla T4 \(compute capability 7\.5\) has no bfloat16; fix: rl_module\.dtype=float32$"
    with pytest.raises(ConfigError, match=learner):
        validate_start(in_float16.copy(copy_frozen=False).rl_module(dtype="bfloat16"))
    machine(gpus=1, kinds=[GPU("NVIDIA L4", (8, 9))])
    validate_start(config)


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "_NVIDIA_SMI", ("a-command-that-is-not-there",))
    assert gpus._listed_gpus.__wrapped__() is None


def test_the_check_compares_driver_and_cuda(config, machine):
    machine(gpus=1)
    assert report(config)["driver of GPUs"] == "NVIDIA 580.65.06; CUDA 13.0"
    machine(gpus=0, driver="550.54.15")
    assert report(config)["driver of GPUs"].startswith("NVIDIA 550.54.15; NOT USABLE: CUDA 13.0, which torch")


def test_a_run_on_gpus_that_the_driver_keeps_from_torch_is_refused_with_the_reason(config, machine):
    machine(gpus=0, driver="550.54.15")
    line = r"^learners\.num_gpus_per_learner: the NVIDIA driver here is 550\.54\.15, and CUDA 13\.0, .*; fix: a newer"
    with pytest.raises(ConfigError, match=line):
        validate_start(config.learners(num_gpus_per_learner=1))
    validate_start(config.learners(num_gpus_per_learner=0))


def test_vllm_engines_in_actors_reserve_the_gpus_that_they_would_take_anyway(config, machine):
    machine(gpus=8)
    config.env_runners(engine="vllm", num_env_runners=8)
    key = r"env_runners\.num_gpus_per_env_runner"
    line = rf"^{key}: is 0, and each of 8 vLLM .*; fix: {key}=1$"
    with pytest.raises(ConfigError, match=line):
        validate_start(config)
    validate_start(config.copy(copy_frozen=False).env_runners(num_gpus_per_env_runner=1))
    validate_start(config.copy(copy_frozen=False).env_runners(engine="transformers"))
    # One engine in the driver uses the learner's.
    share, gpu = {"gpu_memory_utilization": 0.45}, {"num_gpus_per_learner": 1}
    validate_start(config.copy(copy_frozen=False).env_runners(num_env_runners=0, **share).learners(**gpu))
    machine(gpus=8, cuda=None)  # engines for the CPU, whatever the cluster has
    validate_start(config)


def test_another_vllm_is_named_by_the_check_and_at_the_start(config, machine, monkeypatch, caplog):
    config.env_runners(engine="vllm")
    assert "vLLM" not in report(config)
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.26.0" if name.startswith("vllm") else version(name)
    )
    line = "vLLM 0.26.0 is installed, 0.32 is supported; fix: pip install -e '.[vllm]'"
    assert report(config)["vLLM"] == line
    validate_start(config)
    assert line in caplog.messages
    assert "vLLM" not in report(config.env_runners(engine="transformers"))


def test_the_vllm_that_is_supported_is_the_one_that_is_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(line.startswith(f"vllm=={resources.VLLM_VERSION}.") for line in project["optional-dependencies"]["vllm"])


def test_an_engine_whose_cache_has_room_for_more_responses_is_told_how_many(config, machine, monkeypatch):
    model = ModelFacts("1.5B", "Qwen2ForCausalLM", 1_777_088_000, 28, 2, 128, 131_072)
    monkeypatch.setattr(memory, "found_gpus", lambda: FoundGPUs("580.65.06", 80 * 10**9))
    config.rl_module(dtype="bfloat16").training(queries_per_step=128, group_size=8)
    config.env_runners(engine="vllm", dtype="bfloat16", num_env_runners=4, num_gpus_per_env_runner=1)

    def hints(**changed):
        changed_config = config.copy(copy_frozen=False).env_runners(**changed)
        return [line for _, line in memory.room_lines(changed_config, model, 8700)]

    (hint,) = hints()
    # (80e9 × 0.92 - 2 × 1.777e9) / (28 layers × 2 × 2 heads × 128 × 2 bytes × 8,700 tokens) = 280
    assert "room for 280 of them" in hint and hint.endswith("env_runners.max_num_seqs=256")
    assert hints(max_num_seqs=256) == []
    assert hints(num_env_runners=8) == [], "a step gives each engine 128"
    assert hints(gpu_memory_utilization=0.2) == [], "no room for more than 128"
    assert hints(engine="transformers") == hints(num_gpus_per_env_runner=0) == []
