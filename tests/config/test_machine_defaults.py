"""What follows from the machine where nobody sets it, and what is the quickstart's alone."""

import os

import pytest
import torch

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.config.machine import EnvRunnerSettings
from algorithms.config.placement import Placement, engine_share, engine_sleeps, placement
from algorithms.config.schema import describe_default
from algorithms.config.sections import RunSettings
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.preflight.check import check
from algorithms.preflight.resources import reserved
from algorithms.r3_grpo.config import R3GRPOConfig
from tests.rollout.test_vllm_engine import two_vllm_actors
from tests.transfer.conftest import configuration


def with_gpus(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: set(range(4))
    )  # fewer than the actors ask for, which share them


def chosen(config) -> tuple[str, str, str, float]:
    runners, module = config.env_runners_settings, config.rl_module_settings
    return runners.engine, runners.dtype, module.dtype, config.learners_settings.num_gpus_per_learner


@pytest.mark.parametrize("make", [configuration, two_vllm_actors])
def test_tests_that_compare_log_probs_closely_compute_in_float32_beside_a_gpu_too(make, monkeypatch):
    with_gpus(1, monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = make()
    assert chosen(config)[1:3] == ("float32", "float32")
    assert reserved(config).gpus <= 1


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [(0, ("transformers", "float32", "float32", 0.0)), (1, ("vllm", "bfloat16", "bfloat16", 1.0))],
)
def test_engine_types_and_gpu_follow_from_the_machine(gpus, expected, monkeypatch):
    with_gpus(gpus, monkeypatch)
    assert chosen(GRPOConfig()) == expected
    assert chosen(load(None, ["rl_module.model=/models/mine"], R3GRPOConfig)[0]) == expected


def test_one_gpu_is_shared_in_turn_without_further_settings(monkeypatch):
    with_gpus(1, monkeypatch)
    config = GRPOConfig()
    config.check_settings()
    assert placement(config) is Placement.ONE_PROCESS
    assert (engine_share(config), engine_sleeps(config)) == (0.45, True)
    config.env_runners(gpu_memory_utilization=0.3, sleep_while_training=False)
    assert (engine_share(config), engine_sleeps(config)) == (0.3, False)


def test_engines_with_gpus_of_their_own_take_what_vllm_takes_and_stay_awake():
    config = GRPOConfig().env_runners(engine="vllm", num_env_runners=4, num_gpus_per_env_runner=1)
    config.learners(num_learners=4, num_gpus_per_learner=1)
    assert (engine_share(config), engine_sleeps(config)) == (None, False)


def test_the_defaults_are_described_for_both_machines():
    assert describe_default(EnvRunnerSettings.model_fields["engine"]) == "'vllm' with CUDA, else 'transformers'"
    with pytest.raises(ConfigError, match=r"the default is 'vllm' with CUDA, else 'transformers'$"):
        GRPOConfig().env_runners(engine=3)


@pytest.mark.parametrize("gpus", [0, 1])
def test_the_quickstart_is_the_same_everywhere(gpus, monkeypatch):
    with_gpus(gpus, monkeypatch)
    config, run = load(None, ["run.steps=3"], R3GRPOConfig)
    assert chosen(config) == ("transformers", "float32", "float32", 0.0)
    assert run.name is not None and run.name.startswith("quickstart-")
    assert config.environment_settings.data == "embedded:train"


def test_a_model_of_ones_own_inherits_nothing_from_the_quickstart():
    config, run = load(None, ["rl_module.model=org/My-Model"], R3GRPOConfig)
    expected = R3GRPOConfig().rl_module(model="org/My-Model")
    assert config.to_sections() == expected.to_sections()
    assert run.model_dump(exclude={"name"}) == RunSettings().model_dump(exclude={"name"})
    assert run.name is not None and run.name.startswith("My-Model-")


def test_the_embedded_model_keeps_the_settings_that_were_made_for_it():
    config, _ = load(None, ["rl_module.model=embedded:tiny", "training.group_size=4"], R3GRPOConfig)
    assert config.training_settings.lr == 1.2e-4


OWN = [("own_model_1gpu", 1, Placement.ONE_PROCESS), ("own_model_8gpu", 8, Placement.SHARED_GPUS)]


@pytest.mark.parametrize(("name", "gpus", "where"), OWN)
def test_the_files_to_copy_are_accepted_where_their_gpus_are(name, gpus, where, monkeypatch, tiny_model, problems):
    with_gpus(gpus, monkeypatch)
    overrides = [f"rl_module.model={tiny_model}", f"environment.data={problems}", "evaluation.data=null"]
    config, run = load(
        configs_folder() / f"{name}.yaml", [*overrides, "env_runners.max_response_tokens=400"], R3GRPOConfig
    )
    lines = check(config, run).lines
    text = "\n".join(lines)
    assert f"this machine has 4 CPUs and {gpus} GPU" in text
    assert "NOT ENOUGH" not in text and "NONE IS USED" not in text
    assert round(reserved(config).gpus, 6) == gpus
    assert placement(config) is where
    assert engine_sleeps(config) and engine_share(config) == 0.45
    assert chosen(config)[:3] == ("vllm", "bfloat16", "bfloat16")


@pytest.mark.parametrize(("name", "gpus", "where"), OWN)
def test_the_files_to_copy_say_that_a_gpu_is_missing(name, gpus, where, monkeypatch, tiny_model, problems):
    with_gpus(gpus - 1, monkeypatch)
    overrides = [f"rl_module.model={tiny_model}", f"environment.data={problems}", "evaluation.data=null"]
    config, run = load(
        configs_folder() / f"{name}.yaml", [*overrides, "env_runners.max_response_tokens=400"], R3GRPOConfig
    )
    report = check(config, run)
    assert not report.enough and any("NOT ENOUGH" in line for line in report.lines)


def test_engines_that_never_rest_do_not_sleep():
    config = GRPOConfig().env_runners(engine="vllm", num_env_runners=1, num_gpus_per_env_runner=0.51)
    config.learners(num_learners=1, num_gpus_per_learner=0.49)
    assert engine_sleeps(config)
    assert not engine_sleeps(config.training(max_off_policy_steps=1))
