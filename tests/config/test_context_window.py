"""Which tokens need an embedding, and whether an evaluation's second tries have room, before anything is started."""

import shutil

import pytest
from transformers import AutoTokenizer

from algorithms.config.sections import RunSettings
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.preflight.check import check, validate_start
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.evaluated_run import EvaluateConfig

RUN = RunSettings(name="mine", steps=7)


@pytest.fixture
def config(tiny_model, problems) -> GRPOConfig:
    return (
        GRPOConfig()
        .environment(data=str(problems), instruction="")
        .rl_module(model=str(tiny_model))
        .env_runners(max_response_tokens=64)
    )


@pytest.fixture
def ends_otherwise(config, tiny_model, tmp_path):
    """The model with a tokenizer whose end has no embedding; its generation config names another one."""
    folder = shutil.copytree(tiny_model, tmp_path / "copy")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    return config.rl_module(model=str(folder)), folder


def test_a_further_end_that_the_model_has_no_embedding_for_is_harmless(ends_otherwise):
    config, _ = ends_otherwise
    assert check(config, RUN)


def test_where_the_model_has_no_embedding_for_any_end_no_response_would_end(ends_otherwise):
    config, folder = ends_otherwise
    (folder / "generation_config.json").unlink()
    with pytest.raises(ConfigError, match=r"its tokenizer gives token \d+, and the model has embeddings for 98"):
        check(config, RUN)


@pytest.mark.parametrize("config_class", [GRPOConfig, R3GRPOConfig, EvaluateConfig])
def test_training_refuses_second_tries_of_several_turns_as_the_command_does(config_class):
    config = config_class().environment(max_turns=2).evaluation(reflection=True)
    with pytest.raises(ConfigError) as raised:
        config.check_settings()
    assert str(raised.value) == (
        "evaluation.reflection: true with episodes of up to 2 turns, which already have further attempts; "
        "fix: environment.max_turns=1 or evaluation.reflection=false"
    )
    config.evaluation(reflection=False).check_settings()


def test_training_refuses_second_tries_without_room_and_the_fix_has_it(config):
    config = config.evaluation(reflection=True)
    with pytest.raises(ConfigError) as raised:
        check(config.env_runners(max_response_tokens=4096), RUN)
    most = int(str(raised.value).rpartition("=")[2])  # that a first answer may have
    config.env_runners(max_response_tokens=most)
    with pytest.raises(ConfigError, match="the turn that asks for a second attempt") as raised:
        validate_start(config)
    fix = int(str(raised.value).rpartition("=")[2])
    assert 0 < fix < most
    assert check(config.env_runners(max_response_tokens=fix), RUN)
    with pytest.raises(ConfigError, match=f"fix: env_runners.max_response_tokens={fix}"):
        check(config.env_runners(max_response_tokens=fix + 1), RUN)
    assert check(config.evaluation(reflection=False), RUN)
