"""What is sampled is what is trained: only evaluations truncate the distribution."""

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.evaluation.sampling import evaluation_sampling
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.check import check
from algorithms.rollout.types import Sampling
from algorithms.train.evaluated_run import EvaluateConfig

TRUNCATIONS = [("top_p", 0.9, 1), ("top_k", 20, 0), ("min_p", 0.05, 0)]


@pytest.mark.parametrize(("key", "value", "whole"), TRUNCATIONS)
def test_training_samples_the_whole_distribution_and_evaluations_what_they_ask_for(key, value, whole):
    with pytest.raises(ConfigError, match=f"env_runners.{key}: no such setting; did you mean evaluation.{key}?"):
        GRPOConfig().env_runners(**{key: value})
    training = GRPOConfig().environment("r3env/Math-v0").evaluation(**{key: value})
    training.check_settings()
    sampled = Sampling.of(training.env_runners_settings)
    assert getattr(sampled, key) == whole and not sampled.truncated
    command, _ = load([], [f"evaluation.{key}={value}"], EvaluateConfig)
    for config in (training, command):
        own = evaluation_sampling(config.evaluation_settings, sampled)
        assert getattr(own, key) == value and own.truncated


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
        ("evaluation.top_k=-1", "evaluation.top_k: -1 is not a whole number >= 0"),
    ],
)
def test_a_wrong_value_is_named(override, line):
    with pytest.raises(ConfigError) as error:
        load([], [override], GRPOConfig)
    assert str(error.value).startswith(line)


def test_a_token_outside_the_vocabulary_is_refused_before_anything_starts():
    config, run = load([], ["env_runners.stop_token_ids=[3, 4000]"], GRPOConfig)
    with pytest.raises(ConfigError, match=r"env_runners.stop_token_ids: 4000 is no token of embedded:tiny, .* 293;"):
        check(config, run)


def test_the_check_says_what_ends_a_response_and_how_evaluations_sample():
    settings = ["env_runners.stop=['</a>']", "env_runners.stop_token_ids=[3]", "evaluation.top_p=0.9"]
    config, run = load([], settings, GRPOConfig)
    lines = check(config, run).lines
    assert "stops           responses end after '</a>', token 3" in lines
    assert "eval sampling   top_p 0.9" in lines
