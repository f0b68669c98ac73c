"""The presets set what they promise. (docs/method/r3.md's table of defaults is checked against the code.)"""

from typing import Any

import pytest

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.r3_grpo.config import R3GRPOConfig

PAPER: dict[str, dict[str, Any]] = {
    "env_runners": {"max_response_tokens": 8192},
    "training": {"clip_low": 0.2, "clip_high": 0.2, "loss_aggregation": "response", "beta": 0.001},
    "reward": {"length_bonus": 1.0, "length_bonus_max_tokens": 32768},
    "history": {"capacity": None, "dedupe": False, "window": 0},
    "replay": {
        "enabled": True,
        "k": 1,
        "contexts": "any",
        "ratio": "stored",
        "std_scale": 1.0,
        "scale_rows": "all",
    },
    "reflection": {
        "enabled": True,
        "threshold": 0.25,
        "statistic": "reward",
        "min_attempts": 1,
        "max_share": 1.0,
        "max_attempt_tokens": None,
        "adaptive": False,
        "distill": False,
    },
    "ranking": {
        "enabled": True,
        "top_fraction": 0.2,
        "max_reward": 0.1,
        "scope": "truncated",
        "baseline": "paper",
        "std_floor": 0.0,
    },
}


def test_the_paper_preset_is_the_papers_column_to_the_letter():
    config, _ = load(configs_folder() / "paper_r1_1p5b.yaml", [], R3GRPOConfig)
    settings = config.to_sections()
    assert {section: {key: settings[section][key] for key in keys} for section, keys in PAPER.items()} == PAPER


def test_the_deepscaler_config_keeps_our_defaults_of_the_method():
    config, _ = load(configs_folder() / "deepscaler_r1_1p5b.yaml", [], R3GRPOConfig)
    settings, defaults = config.to_sections(), R3GRPOConfig().to_sections()
    for section in ("reward", "history", "replay", "reflection", "ranking"):
        assert settings[section] == defaults[section]
    for key in ("lr", "clip_low", "clip_high", "loss_aggregation", "beta", "importance_cap"):
        assert settings["training"][key] == defaults["training"][key]


@pytest.mark.parametrize("name", ["paper_r1_1p5b.yaml", "deepscaler_r1_1p5b.yaml"])
def test_the_presets_of_the_paper_name_its_model_and_data(name):
    config, _ = load(configs_folder() / name, [], R3GRPOConfig)
    assert config.rl_module_settings.model == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert config.environment_settings.data == "agentica-org/DeepScaleR-Preview-Dataset"
    assert config.env_runners_settings.engine == "vllm"


def test_the_quickstart_needs_neither_gpu_nor_network_nor_actors():
    config, _ = load(None, [], R3GRPOConfig)
    assert config.rl_module_settings.model == "embedded:tiny"
    assert config.environment_settings.data in (None, "embedded:train")
    assert config.evaluation_settings.data == "embedded:heldout"
    assert config.num_env_runners == config.num_learners == config.num_gpus_per_learner == 0
