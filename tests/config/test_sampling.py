"""What is sampled is what is trained: a truncated distribution is refused in training, and taken in evaluations."""

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.evaluation.sampling import evaluation_sampling
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.check import check
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.types import Sampling
from algorithms.train.evaluated_run import EvaluateConfig

TRUNCATIONS = [("top_p", 0.9, 1), ("top_k", 20, 0), ("min_p", 0.05, 0)]


@pytest.mark.parametrize("kind", [GRPOConfig, R3GRPOConfig])
@pytest.mark.parametrize(("key", "value", "whole"), TRUNCATIONS)
def test_training_refuses_a_truncated_distribution_in_one_line(kind, key, value, whole):
    config = kind().environment("r3env/Math-v0").env_runners(**{key: value})
    for way in (config.check_settings, config.validate, config.build_algo):
        with pytest.raises(ConfigError) as error:
            way()
        assert str(error.value) == (
            f"env_runners.{key}: {value} truncates the distribution that responses are sampled from, and the learner "
            f"trains the whole one; fix: env_runners.{key}={whole}, and evaluation.{key}={value} to evaluate with it"
        )


@pytest.mark.parametrize(("key", "value", "whole"), TRUNCATIONS)
def test_evaluations_take_it_in_training_and_as_a_command(key, value, whole):
    training = GRPOConfig().environment("r3env/Math-v0").evaluation(**{key: value})
    training.check_settings()
    sampled = Sampling.of(training.env_runners_settings)
    assert getattr(sampled, key) == whole and not sampled.truncated
    held_out = evaluation_sampling(training.evaluation_settings, sampled)
    assert getattr(held_out, key) == value and held_out.truncated
    for section in ("env_runners", "evaluation"):
        command, _ = load([], [f"{section}.{key}={value}"], EvaluateConfig)
        command.check_settings()
        own = evaluation_sampling(command.evaluation_settings, Sampling.of(command.env_runners_settings))
        assert getattr(own, key) == value


def test_texts_and_tokens_that_end_a_response_are_taken_in_both():
    config, _ = load([], ['env_runners.stop=["</answer>", "\\n\\n"]', "env_runners.stop_token_ids=[7]"], GRPOConfig)
    config.check_settings()
    sampled = Sampling.of(config.env_runners_settings)
    assert (sampled.stop, sampled.stop_token_ids) == (("</answer>", "\n\n"), (7,))
    assert evaluation_sampling(config.evaluation_settings, sampled) == sampled
    config.evaluation(stop=[])
    assert evaluation_sampling(config.evaluation_settings, sampled) == Sampling(
        sampled.temperature, 1.0, sampled.max_response_tokens, stop_token_ids=(7,)
    )


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("env_runners.stop=[7]", "env_runners.stop: [7] is not a list, each text"),
        ("env_runners.stop=['']", "env_runners.stop: [''] is not a list, each text that is not empty"),
        ("env_runners.stop_token_ids=[-1]", "env_runners.stop_token_ids: [-1] is not a list, each a whole number >= 0"),
        ("evaluation.top_k=-1", "evaluation.top_k: -1 is not a whole number >= 0, or null"),
    ],
)
def test_a_wrong_value_is_named(override, line):
    with pytest.raises(ConfigError) as error:
        load([], [override], GRPOConfig)
    assert str(error.value).startswith(line)


def test_a_token_outside_the_vocabulary_is_refused_before_anything_starts():
    for section in ("env_runners", "evaluation"):
        config, run = load([], [f"{section}.stop_token_ids=[3, 4000]"], GRPOConfig)
        with pytest.raises(ConfigError, match=rf"{section}.stop_token_ids: 4000 is no token of embedded:tiny, .* 293;"):
            check(config, run)


def test_the_check_says_what_ends_a_response_and_how_evaluations_sample():
    settings = ["env_runners.stop=['</a>']", "env_runners.stop_token_ids=[3]", "evaluation.top_p=0.9"]
    config, run = load([], settings, GRPOConfig)
    lines = check(config, run).lines
    assert "stops           responses end after '</a>', token 3" in lines
    assert "eval sampling   top_p 0.9" in lines
