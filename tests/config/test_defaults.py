"""The defaults are the table of the method; the presets say where they leave it."""

from typing import Any

import pytest

from algorithms.config.loading import configs_folder, load
from algorithms.config.sections import RunSettings
from algorithms.r3_grpo.config import R3GRPOConfig

DEFAULTS: dict[str, dict[str, Any]] = {
    "environment": {
        "id": "r3env/Math-v0",
        "data": None,
        "columns": {},
        "instruction": None,
        "reflection_guidance": None,
        "max_turns": 1,
        "grading_timeout_s": 5.0,
        "options": {},
    },
    "rl_module": {
        "model": "embedded:tiny",
        "revision": None,
        "dtype": "float32",
        "gradient_checkpointing": False,
        "trust_remote_code": False,
        "lora_rank": 0,
        "lora_alpha": 32.0,
        "lora_targets": [],
    },
    "env_runners": {
        "engine": "transformers",
        "num_env_runners": 0,
        "dtype": "float32",
        "max_response_tokens": 8192,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_num_seqs": 128,
        "num_cpus_per_env_runner": 1.0,
        "num_gpus_per_env_runner": 0.0,
        "num_threads": None,
        "step_timeout_s": 1800.0,
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": None,
        "weight_transfer": "auto",
        "sleep_while_training": False,
        "timeout_s": 600.0,
        "logp_mismatch_warning": None,
        "vllm": {},
    },
    "learners": {
        "num_learners": 0,
        "token_budget": 16384,
        "sharding": "none",
        "offload": False,
        "packing": True,
        "peak_tflops": None,
        "num_cpus_per_learner": 1.0,
        "num_gpus_per_learner": 0.0,
        "num_threads": None,
    },
    "training": {
        "lr": 1e-6,
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "grad_clip": 1.0,
        "max_skipped_steps": 3,
        "group_size": 8,
        "queries_per_step": 16,
        "minibatches": 1,
        "advantage": "std",
        "max_resample_rounds": 0,
        "objective": "clip",
        "ratio_level": "token",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual_clip": None,
        "loss_aggregation": "token",
        "max_off_policy_steps": 0,
        "beta": 0.0,
        "importance_cap": 2.0,
        "importance_level": "token",
        "importance_mode": "truncate",
        "importance_floor": 0.0,
    },
    "reward": {"length_bonus": 1.0, "length_bonus_max_tokens": 32768, "overlong_penalty": 0.0, "overlong_share": 0.2},
    "evaluation": {
        "interval": 0,
        "data": None,
        "columns": {},
        "samples": 8,
        "k": [1, 8],
        "limit": None,
        "temperature": None,
        "top_p": None,
        "reflection": False,
    },
    "replay": {
        "enabled": True,
        "k": 1,
        "capacity": 8,
        "contexts": "same",
        "dedupe": True,
        "ratio": "stored",
        "std_scale": 1.0,
        "scale_rows": "all",
    },
    "reflection": {
        "enabled": True,
        "threshold": 0.25,
        "statistic": "correct",
        "min_attempts": None,
        "max_share": 0.25,
        "max_attempt_tokens": 2048,
        "history_window": None,
        "adaptive": True,
        "distill": True,
    },
    "ranking": {
        "enabled": True,
        "top_fraction": 0.2,
        "max_reward": 0.1,
        "scope": "truncated",
        "baseline": "finished_wrong",
        "std_floor": 0.5,
    },
}
RUN_DEFAULTS = {
    "name": None,
    "dir": "runs",
    "steps": 100,
    "seed": 0,
    "checkpoint_every": 50,
    "keep_checkpoints": 3,
    "best_metric": "eval/pass@1",
    "log_conversations": 2,
    "save_rollouts": True,
    "max_generated_tokens": 0,
    "save_tokens": True,
}
PAPER: dict[str, dict[str, Any]] = {
    "env_runners": {"max_response_tokens": 8192},
    "training": {"clip_low": 0.2, "clip_high": 0.2, "loss_aggregation": "response", "beta": 0.001},
    "reward": {"length_bonus": 1.0, "length_bonus_max_tokens": 32768},
    "replay": {
        "enabled": True,
        "k": 1,
        "capacity": None,
        "contexts": "any",
        "dedupe": False,
        "ratio": "stored",
        "std_scale": 1.0,
        "scale_rows": "all",
    },
    "reflection": {
        "enabled": True,
        "threshold": 0.25,
        "statistic": "reward",
        "min_attempts": None,
        "max_share": 1.0,
        "max_attempt_tokens": None,
        "history_window": 0,
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


def test_every_default_is_that_of_the_method():
    assert R3GRPOConfig().to_sections() == DEFAULTS
    assert RunSettings().model_dump() == RUN_DEFAULTS


def test_the_paper_preset_is_the_papers_column_to_the_letter():
    config, _ = load(configs_folder() / "paper_r1_1p5b.yaml", [], R3GRPOConfig)
    settings = config.to_sections()
    assert {section: {key: settings[section][key] for key in keys} for section, keys in PAPER.items()} == PAPER


def test_the_deepscaler_config_keeps_our_defaults_of_the_method():
    config, _ = load(configs_folder() / "deepscaler_r1_1p5b.yaml", [], R3GRPOConfig)
    settings = config.to_sections()
    for section in ("reward", "replay", "reflection", "ranking"):
        assert settings[section] == DEFAULTS[section]
    method = {
        key: DEFAULTS["training"][key]
        for key in ("lr", "clip_low", "clip_high", "loss_aggregation", "beta", "importance_cap")
    }
    assert {key: settings["training"][key] for key in method} == method


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
