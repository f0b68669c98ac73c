"""The fluent methods take our names and RLlib's, and both views of a setting agree."""

import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from algorithms.config.rllib_names import RLLIB_NAMES, rllib_arguments
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig

OTHER_VALUES = {
    ("environment", "id"): "own:Id-v0",
    ("env_runners", "num_env_runners"): 2,
    ("env_runners", "num_cpus_per_env_runner"): 0.5,
    ("env_runners", "num_gpus_per_env_runner"): 0.25,
    ("env_runners", "timeout_s"): 5.0,
    ("learners", "num_learners"): 3,
    ("learners", "num_cpus_per_learner"): 2.0,
    ("learners", "num_gpus_per_learner"): 1.0,
    ("training", "lr"): 0.5,
    ("training", "passes"): 3,
    ("training", "grad_clip"): 0.1,
    ("evaluation", "interval"): 5,
}


@pytest.mark.parametrize("section", R3GRPOConfig.class_sections())
def test_every_setting_can_be_given_to_the_method_of_its_section(section):
    config = R3GRPOConfig()
    settings = config.to_sections()[section]
    assert getattr(config, section)(**settings) is config
    assert config.to_sections()[section] == settings


@pytest.mark.parametrize("section", R3GRPOConfig.class_sections())
def test_no_setting_hides_a_fluent_method(section):
    config = R3GRPOConfig()
    assert callable(getattr(config, section))
    assert set(config.sections) & set(vars(config)) == set()


def test_the_table_covers_every_setting_that_is_rllibs_too():
    assert set(OTHER_VALUES) == set(RLLIB_NAMES)
    ours = {(s, key) for s, model in R3GRPOConfig.class_sections().items() for key in model.model_fields}
    same_name = {(section, key) for section, key in ours if key in rllib_arguments(section)}
    assert same_name <= set(RLLIB_NAMES)


@pytest.mark.parametrize(("section", "key"), RLLIB_NAMES)
def test_a_shared_setting_is_the_same_by_either_name_and_by_attribute(section, key):
    value, rllib_name = OTHER_VALUES[section, key], RLLIB_NAMES[section, key]
    by_our_name, by_rllibs, by_attribute, by_item = (R3GRPOConfig() for _ in range(4))
    getattr(by_our_name, section)(**{key: value})
    getattr(by_rllibs, section)(**{rllib_name: value})
    setattr(by_attribute, rllib_name, value)
    by_item[rllib_name] = value
    for config in (by_our_name, by_rllibs, by_attribute, by_item):
        assert getattr(config, rllib_name) == value
        assert config.to_sections()[section][key] == value


def test_zero_is_what_rllib_calls_none():
    config = GRPOConfig()
    assert config.evaluation_interval is None
    assert config.training(grad_clip=0).grad_clip is None
    config.evaluation(evaluation_interval=None).training(grad_clip=None)
    assert config.evaluation_settings.interval == config.training_settings.grad_clip == 0


@pytest.mark.parametrize("key", ["interval", "samples"])
def test_none_is_no_number_under_our_own_name(key):
    with pytest.raises(ConfigError, match=rf"^evaluation\.{key}: null is not a whole number >= "):
        GRPOConfig().evaluation(**{key: None})


def test_settings_can_be_replaced_whole_and_rllib_sees_it():
    config = GRPOConfig()
    config.training_settings = config.training_settings.model_copy(update={"lr": 0.25})
    assert config.lr == 0.25


def test_env_config_holds_only_what_was_set():
    config = GRPOConfig()
    assert config.env_config == {}
    config.environment("r3env/Math-v0", env_config={"data": "a.jsonl", "split": "test"}, max_turns=2)
    assert config.env_config == {"data": "a.jsonl", "split": "test", "max_turns": 2}
    assert config.environment_settings.options == {"split": "test"}
    config.environment(env_config={"zoom": 3}, data=None)
    assert config.env_config == {"split": "test", "zoom": 3, "max_turns": 2}
    config.env_config = {"zoom": 4}
    assert config.env_config == {"zoom": 4}
    assert config.environment_settings.max_turns == 1


def test_an_empty_instruction_is_an_instruction_of_its_own():
    assert GRPOConfig().environment(instruction="").env_config == {"instruction": ""}


def test_the_held_out_environment_differs_in_its_data():
    config = GRPOConfig().evaluation(data="b.jsonl")
    assert config.evaluation_settings.environment_arguments() == {"data": "b.jsonl"}
    config.evaluation(columns={"problem": "q"})
    assert config.evaluation_settings.environment_arguments() == {
        "data": "b.jsonl",
        "columns": {"problem": "q"},
    }


@pytest.mark.parametrize(
    ("data", "columns", "expected"),
    [
        ("b.jsonl", {}, {"answer": "solution"}),
        ("preset:math500", {}, None),  # it has a column `solution`, which is no answer
        ("preset:math500", {"answer": "a"}, {"answer": "a"}),
        (None, {}, {"answer": "solution"}),
    ],
)
def test_columns_of_the_training_problems_are_not_those_of_a_preset(data, columns, expected):
    config = GRPOConfig().environment(columns={"answer": "solution"}).evaluation(data=data, columns=columns)
    assert config.evaluation_settings.held_out(config.env_config).get("columns") == expected


def test_a_local_runner_is_made_only_without_remote_ones():
    config = GRPOConfig()
    assert config.create_local_env_runner is True
    assert config.env_runners(num_env_runners=2).create_local_env_runner is False
    assert config.env_runners(create_local_env_runner=True).create_local_env_runner is True
    assert config.env_runners(num_env_runners=0).create_local_env_runner is True


def test_rllibs_own_arguments_pass_through():
    config = (
        GRPOConfig()
        .env_runners(rollout_fragment_length=7)
        .learners(local_gpu_idx=1)
        .evaluation(evaluation_num_env_runners=0)
        .environment(disable_env_checking=True)
        .rl_module(model_config={"dtype": "bfloat16", "extra": 1})
        .debugging(seed=3)
    )
    assert (config.rollout_fragment_length, config.local_gpu_idx, config.seed) == (7, 1, 3)
    assert config.disable_env_checking is True
    assert config.rl_module_settings.dtype == "bfloat16"
    assert config.model_config["extra"] == 1


def test_the_module_gets_the_models_folder(tiny_model):
    config = GRPOConfig().rl_module(model=str(tiny_model), gradient_checkpointing=True)
    assert config.model_config["model"] == str(tiny_model)
    assert config.model_config["gradient_checkpointing"] is True


def test_an_argument_that_nobody_knows_is_an_error():
    with pytest.raises(ConfigError, match=r"^training\.lrr: no such setting; did you mean training\.lr\?$"):
        GRPOConfig().training(lrr=1)


def test_rllib_is_told_to_leave_the_runners_alone():
    config = GRPOConfig()
    assert (config.merge_env_runner_states, config.broadcast_env_runner_states) == (False, False)
    assert config.delay_between_env_runner_restarts_s == 0
    assert config._dont_auto_sync_env_runner_states is True
    assert hasattr(AlgorithmConfig(), "_dont_auto_sync_env_runner_states")
    assert config.is_atari is False


@pytest.mark.parametrize("seed", [-1, 1.5, 2**32])
def test_rllibs_seed_is_checked_as_the_commands(seed):
    with pytest.raises(
        ConfigError, match=r"^debugging\(seed=.*\): is no whole number from 0 to 4294967295; fix: seed=0"
    ):
        GRPOConfig().debugging(seed=seed).check_settings()
    GRPOConfig().debugging(seed=None).check_settings()
