"""RLlib and Tune copy, freeze, flatten and pickle configurations; the settings survive all of it."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import ray
from ray import cloudpickle, tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.env.env_runner import EnvRunner

from algorithms.grpo.algorithm import GRPO
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.reward_actors import bundles_of_trial


@pytest.fixture
def config() -> R3GRPOConfig:
    """A configuration that differs from the default in every kind of setting."""
    return (
        R3GRPOConfig(algo_class=Algorithm)
        .environment("own:Id-v0", env_config={"data": "x.jsonl", "zoom": [3]}, system="Be brief.")
        .rl_module(chat_template_kwargs={"enable_thinking": False}, earlier_turns="rendered")
        .env_runners(num_env_runners=2, env_runner_cls=EnvRunner, vllm={"seed": 1})
        .training(lr=0.5, group_size=4)
        .evaluation(interval=5, k=[1, 2])
        .replay(k=2)
        .ranking(enabled=False)
        .debugging(seed=3)
    )


COPIES = {
    "copy": lambda config: config.copy(copy_frozen=False),
    "deepcopy": copy.deepcopy,
    "pickle": lambda config: pickle.loads(pickle.dumps(config)),
    "cloudpickle": lambda config: cloudpickle.loads(cloudpickle.dumps(config)),
    "state": lambda config: R3GRPOConfig.from_state(config.get_state()),
    "dict": lambda config: R3GRPOConfig.from_dict(config.to_dict()),
    "sections": lambda config: R3GRPOConfig().apply(config.to_sections()),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_copy_has_the_same_settings_and_is_independent(config, how, frozen):
    if frozen:
        config.freeze()
    twin = COPIES[how](config)
    assert twin.to_sections() == config.to_sections()
    assert (twin.lr, twin.evaluation_interval, twin.env) == (0.5, 5, "own:Id-v0")
    assert twin.env_config == {"data": "x.jsonl", "zoom": [3]}
    twin._is_frozen = False
    twin.training(lr=0.25)
    assert (config.lr, config.training_settings.lr) == (0.5, 0.5)


CHANGES = {
    "fluent": lambda config: config.training(lr=1.0),
    "mechanism": lambda config: config.replay(k=3),
    "apply": lambda config: config.apply({"ranking": {"enabled": True}}),
    "rllib attribute": lambda config: setattr(config, "lr", 1.0),
    "section attribute": lambda config: setattr(config, "replay_settings", config.replay_settings),
    "item": lambda config: config.__setitem__("lr", 1.0),
    "dict": lambda config: config.update_from_dict({"training": {"lr": 1.0}}),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_frozen_configuration_refuses_every_change(config, how):
    config.freeze()
    with pytest.raises(AttributeError, match="frozen"):
        CHANGES[how](config)
    assert (config.lr, config.replay_settings.k, config.ranking_settings.enabled) == (0.5, 2, False)


def test_a_section_cannot_be_changed_in_place(config):
    with pytest.raises(ValueError, match="frozen"):
        config.training_settings.lr = 1.0


def test_the_flat_dict_is_plain_data_and_holds_each_setting_once(config):
    flat = config.to_dict()
    assert flat["lr"] == 0.5
    assert "lr" not in flat["training_settings"]
    assert type(flat["training_settings"]) is dict
    assert flat["environment_settings"] == {"system": "Be brief."}
    assert "environment_settings" not in R3GRPOConfig().to_dict()
    flat["lr"] = 0.125
    assert R3GRPOConfig.from_dict(flat).training_settings.lr == 0.125


def test_a_search_space_reaches_tune_and_its_choice_comes_back():
    config = R3GRPOConfig().training(lr=tune.grid_search([0.5, 0.25]), group_size=tune.choice([4]))
    config.environment(data=tune.grid_search(["a.jsonl", "b.jsonl"]))
    with pytest.raises(ConfigError, match=r"^training\.lr: is still a search space; fix: .*Tuner"):
        config.check_settings()
    flat = config.to_dict()
    assert flat["lr"] == {"grid_search": [0.5, 0.25]}
    assert flat["env_config"] == {"data": {"grid_search": ["a.jsonl", "b.jsonl"]}}
    flat["lr"], flat["env_config"]["data"], flat["training_settings"]["group_size"] = 0.25, "b.jsonl", 4
    chosen = R3GRPOConfig.from_dict(flat)
    chosen.check_settings()
    assert (chosen.lr, chosen.training_settings.group_size, chosen.env_config) == (
        0.25,
        4,
        {"data": "b.jsonl"},
    )


def test_the_length_and_the_greed_of_evaluations_may_be_searched():
    config = GRPOConfig().evaluation(
        evaluation_duration=tune.grid_search([4, 8]), evaluation_config={"explore": tune.choice([True, False])}
    )
    with pytest.raises(ConfigError, match=r"^evaluation\.evaluation_duration: is still a search space; fix: .*Tuner"):
        config.check_settings()
    flat = config.to_dict()
    assert flat["evaluation_duration"] == {"grid_search": [4, 8]}
    flat["evaluation_duration"], flat["evaluation_config"]["explore"] = 4, False
    chosen = GRPOConfig.from_dict(flat)
    chosen.check_settings()
    assert (chosen.evaluation_settings.limit, chosen.evaluation_settings.temperature) == (4, 0.0)
    config.evaluation(evaluation_duration=2, evaluation_config={}).check_settings()
    assert config.evaluation_settings.limit == 2


@pytest.mark.parametrize(
    "named",
    [
        {"training.mechanisms": ["examples.hints:Hints"]},
        {"mechanisms": ["examples.hints:Hints"]},
        {"training": {"mechanisms": ["examples.hints:Hints"]}},
    ],
)
@pytest.mark.parametrize("single", ["hints.max_groups", "max_groups"])
@pytest.mark.parametrize("before", [True, False])
def test_a_trial_chooses_a_method_and_its_settings_in_any_order(config, named, single, before):
    added = {single: 3, **named, "hints": {"enabled": False}}
    chosen = R3GRPOConfig.from_dict(added | config.to_dict() if before else config.to_dict() | added)
    assert (chosen.hints_settings.max_groups, chosen.hints_settings.enabled) == (3, False)
    assert (chosen.lr, chosen.training_settings.group_size, chosen.replay_settings.k) == (0.5, 4, 2)


def test_a_system_turn_may_be_searched_and_outlives_a_change_of_the_constructors_arguments(config):
    flat = config.environment(system=tune.choice(["Be brief.", "Be kind."])).to_dict()
    flat["environment_settings"]["system"] = "Be kind."
    chosen = R3GRPOConfig.from_dict(flat)
    assert chosen.environment_settings.system == "Be kind."
    chosen.env_config = {"data": "y.jsonl"}
    assert (chosen.environment_settings.system, chosen.environment_settings.data) == ("Be kind.", "y.jsonl")
    assert "system" not in chosen.env_config


@pytest.mark.parametrize("added", [{"group_size": 8}, {"training.group_size": 8}, {"training": {"group_size": 8}}])
def test_a_trials_choice_comes_after_the_configuration_it_was_added_to(config, added):
    chosen = R3GRPOConfig.from_dict({**added, **config.to_dict()})
    assert chosen.to_sections() == config.training(group_size=8).to_sections()


def test_a_single_setting_that_is_none_is_refused(config):
    with pytest.raises(ConfigError, match=r"^training\.group_sizes: no such setting; did you mean"):
        config.update_from_dict({"training.group_sizes": 8})


def test_sections_may_be_given_to_tune_by_name():
    config = GRPOConfig.from_dict({"training": {"lr": 0.5, "group_size": 4}})
    assert (config.lr, config.training_settings.group_size) == (0.5, 4)


def test_validate_passes_rllibs_own_checks_and_ours(config, caplog):
    config.validate()
    assert "new API stack" not in caplog.text
    for_evaluation = config.get_evaluation_config_object()
    for_evaluation.validate()
    assert for_evaluation.training_settings == config.training_settings


def test_validate_refuses_what_contradicts_itself(config):
    with pytest.raises(ConfigError, match=r"^ranking\.baseline: "):
        config.ranking(scope="all").validate()


def test_a_configuration_serializes_for_rllibs_loggers(config):
    assert config.serialize()["training_settings"]["group_size"] == 4


def test_a_trial_reserves_spares_behind_env_runners_and_reward_actors_at_the_end(monkeypatch):
    config = GRPOConfig().env_runners(num_env_runners=2, spares=1, num_cpus_per_env_runner=0.5, engine="transformers")
    config.env_runners(reward_actor={"replicas": 2, "num_cpus": 0.25, "resources": {"docker": 1}})
    config.learners(num_learners=1, num_cpus_per_learner=3, num_gpus_per_learner=0)
    request = GRPO.default_resource_request(config.to_dict())
    runner, reward = {"CPU": 0.5}, {"CPU": 0.25, "docker": 1.0}
    assert request.bundles == [{"CPU": 1.0}, runner, runner, runner, {"CPU": 3.0}, reward, reward]
    settings = config.env_runners_settings.reward_actor
    assert [*bundles_of_trial(settings)] == [-1, -1]
    group = SimpleNamespace(bundle_count=len(request.bundles), bundle_specs=request.bundles)
    monkeypatch.setattr(ray.util, "get_current_placement_group", lambda: group)
    assert [*bundles_of_trial(settings)] == [5, 6]
    group.bundle_specs = [*request.bundles[::-1]]  # a group of the user's own
    assert [*bundles_of_trial(settings)] == [-1, -1]
