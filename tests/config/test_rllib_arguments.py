"""Nothing that RLlib's configuration takes is ignored: it has its effect, or is refused in one line."""

import inspect
from types import SimpleNamespace

import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from algorithms.config.rllib_arguments import CALLBACKS, EFFECTIVE, REFUSED, argument_of
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.learner.model import CausalLMModule
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.rllib_episodes import RunnerCallbacks
from algorithms.rollout.types import Split
from tests.docs.pages import DOCS
from website.rllib_arguments import page


class Other:
    """A value that no setting has."""


def refusal(config):
    with pytest.raises(ConfigError) as caught:
        config.check_settings()
    return str(caught.value)


def test_each_attribute_of_the_installed_ray_stands_in_one_table():
    assert EFFECTIVE | REFUSED.keys() == set(vars(AlgorithmConfig()))
    assert not EFFECTIVE & REFUSED.keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_has_no_effect_is_refused_however_it_was_set(name):
    by_attribute, by_item = GRPOConfig(), GRPOConfig()
    setattr(by_attribute, name, Other())
    by_item[name] = Other()
    for config in (by_attribute, by_item):
        line = refusal(config)
        assert line.startswith(f"{argument_of(name)}: has no effect here; ") and "fix: " in line


def fluent():
    for method, function in inspect.getmembers(AlgorithmConfig, inspect.isfunction):
        if method.startswith(("_", "get_")) or not inspect.getsource(function).rstrip().endswith("return self"):
            continue
        for name, parameter in inspect.signature(function).parameters.items():
            # RLlib drops `enable_connectors` itself, with a warning.
            if name not in ("self", "config_dict", "enable_connectors") and parameter.kind is not parameter.VAR_KEYWORD:
                yield pytest.param(method, name, id=f"{method}-{name}")


@pytest.mark.parametrize(("method", "name"), list(fluent()))
def test_every_argument_of_a_fluent_method_is_seen(method, name):
    """Refused by RLlib or by a section, or it changes an attribute, which the tables know."""
    config, before = GRPOConfig(), vars(GRPOConfig())
    try:
        getattr(AlgorithmConfig, method)(config, **{name: Other()})
    except (ValueError, TypeError, AttributeError, AssertionError):
        return
    changed = {key for key, value in vars(config).items() if value is not before[key] and value != before[key]}
    assert changed & (EFFECTIVE | REFUSED.keys())


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("clip_param", "training.clip_low"),
        ("lambda_", "there is no value function"),
        ("temperature", "env_runners.temperature or evaluation.temperature"),
        ("num_generations", "training.group_size"),
        ("group_sizes", "did you mean group_size?"),
        ("frobnicate", "neither RLlib nor a section has it"),
    ],
)
def test_a_name_that_rllib_does_not_have_is_refused_with_ours(name, fix):
    line = refusal(GRPOConfig().update_from_dict({name: 8}))
    assert line.startswith(f"{name}: has no effect here; ") and fix in line


@pytest.mark.parametrize(
    "name",
    sorted(
        {*inspect.signature(PPOConfig.training).parameters}
        - {*inspect.signature(AlgorithmConfig.training).parameters, "kwargs"}
    ),
)
def test_each_argument_of_ppo_is_answered_with_ours(name):
    with pytest.raises(ConfigError, match=f"^training.{name}: ") as caught:
        GRPOConfig().training(**{name: [[0, 1e-4], [1000, 1e-5]]})
    assert "fix: " in str(caught.value) or name == "lr_schedule"  # which is a setting, and says what it takes


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"model_config": DefaultModelConfig(fcnet_hiddens=[32])}, "DefaultModelConfig"),
        ({"model_config": {"fcnet_hiddens": [32], "gradient_checkpointing": True}}, "fcnet_hiddens"),
        ({"rl_module_spec": RLModuleSpec(model_config={"fcnet_hiddens": [32]})}, "fcnet_hiddens"),
    ],
)
def test_settings_of_a_network_of_rllibs_are_refused_but_with_a_module_of_the_users_own(given, named):
    config = GRPOConfig().rl_module(**given)
    assert refusal(config).startswith(f"model_config: {named} has no effect here; fix: rl_module.model, ")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=CausalLMModule)).check_settings()


def test_a_schedule_of_rllibs_is_refused_with_ours():
    with pytest.raises(ConfigError, match=r"^training.lr: \[\[0, 0.1\]\] is not a number; fix: training.lr_schedule"):
        GRPOConfig().training(lr=[[0, 0.1]])


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"evaluation_duration": "auto"}, "evaluation_duration: 'auto' is no number of episodes"),
        ({"evaluation_config": {"explore": "no"}}, "evaluation_config: explore='no' is not true or false"),
        ({"evaluation_config": {"lr": 1}}, "evaluation_config: lr has no effect here; fix: section evaluation"),
        ({"evaluation_config": {"env_config": {"zoom": 1}}}, "evaluation_config: env_config.zoom has no effect here"),
    ],
)
def test_what_is_said_of_evaluations_has_its_effect_or_is_refused_at_once(given, line):
    for change in (lambda config: config.evaluation(**given), lambda config: config.update_from_dict(given)):
        with pytest.raises(ConfigError, match=f"^{line}"):
            change(GRPOConfig())


@pytest.mark.parametrize("given", [{"evaluation_duration": 4}, {"evaluation_config": {"explore": False}}])
def test_what_takes_one_response_per_problem_replaces_no_other_number_of_them(given):
    named = f"{next(iter(given))}: takes one response per problem, and evaluation"
    with pytest.raises(ConfigError, match=rf"^{named}\.samples is 4; fix: leave one of them out$"):
        GRPOConfig().evaluation(samples=4, k=[1, 4], **given)
    with pytest.raises(ConfigError, match=rf"^{named}\.k is \[2\]; fix: "):
        GRPOConfig().update_from_dict(GRPOConfig().evaluation(k=[2]).to_dict() | given)  # as Tune does


def test_no_other_number_of_responses_follows_a_duration():
    config = GRPOConfig().evaluation(evaluation_duration=4)
    named = "evaluation_duration: takes one response per problem"
    with pytest.raises(ConfigError, match=rf"^{named}, and evaluation\.samples is 8; fix: leave one of them out$"):
        config.evaluation(samples=8)
    with pytest.raises(ConfigError, match=rf"^{named}, and evaluation\.k is \[1, 2\]; fix: "):
        config.apply({"evaluation": {"k": [1, 2]}})
    config.evaluation(samples=1, k=[1], evaluation_duration=6).evaluation(evaluation_interval=2).check_settings()
    assert GRPOConfig().update_from_dict(config.to_dict()).evaluation_settings == config.evaluation_settings


def test_evaluations_are_as_long_and_as_greedy_as_rllib_is_told():
    config = GRPOConfig().evaluation(
        evaluation_interval=1,
        evaluation_duration=10,
        evaluation_duration_unit="episodes",
        evaluation_config=GRPOConfig.overrides(explore=False, env_config={"data": "b.jsonl"}),
    )
    config.validate()
    for each in (config, config.copy(copy_frozen=False), GRPOConfig().update_from_dict(config.to_dict())):
        own = each.evaluation_settings
        assert (own.interval, own.limit, own.samples, own.k, own.temperature) == (1, 10, 1, [1], 0.0)
        assert own.environment_arguments() == {"data": "b.jsonl"} and each.env_config == {}
    assert GRPOConfig().update_from_dict(config.to_dict() | {"evaluation_duration": 4}).evaluation_settings.limit == 4
    plain = GRPOConfig().evaluation(samples=4, evaluation_config={"explore": True})
    assert plain.evaluation_settings == GRPOConfig().evaluation(samples=4).evaluation_settings


def test_what_went_through_rllibs_dicts_passes():
    config = R3GRPOConfig().training(lr=1e-5)
    config.validate()
    R3GRPOConfig.from_state(config.get_state()).validate()
    R3GRPOConfig().update_from_dict(config.to_dict()).validate()
    R3GRPOConfig.from_dict(config.serialize()).validate()
    config.copy(copy_frozen=False).validate()
    R3GRPOConfig().update_from_dict({"__stdout_file__": "out", "__trial_info__": {}}).validate()  # of Tune


def test_attributes_of_an_own_class_are_its_own():
    class Own(GRPOConfig):
        other = 1

        def __init__(self, algo_class=None):
            super().__init__(algo_class)
            self.knob = 1

    config = Own()
    config.knob = config.other = 2
    config.check_settings()


@pytest.mark.parametrize("place", sorted(name for name in dir(RLlibCallback) if name.startswith("on_")))
def test_a_callback_that_is_never_called_is_refused(place):
    kind = type("Mine", (RLlibCallback,), {place: lambda self, **_: None})
    config = GRPOConfig().callbacks(kind)
    if place in CALLBACKS:
        config.check_settings()
    else:
        assert refusal(config).startswith(f"Mine.{place}: is never called here; known: on_algorithm_init, ")


def test_callbacks_that_a_function_makes_are_called_in_env_runners():
    class Mine(RLlibCallback):
        def on_sample_end(self, *, samples, **_):
            seen.append(samples)

    seen, config = [], GRPOConfig().callbacks(lambda: Mine())
    callbacks = RunnerCallbacks(SimpleNamespace(config=config, metrics=MetricsLogger(root=False)))
    assert callbacks.wanted
    callbacks.call("on_sample_end", Split.TRAIN, samples=1)
    assert seen == [1]


def test_the_page_lists_them():
    again = "run python -m website.rllib_arguments > docs/reference/rllib-arguments.md"
    assert (DOCS / "reference" / "rllib-arguments.md").read_text() == page(), again
