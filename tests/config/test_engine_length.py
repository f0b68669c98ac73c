"""The context that a vLLM engine is started with: it follows from what is generated, and its cache holds it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from algorithms.config.sections import RunSettings
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.models.names import ModelFacts, validate_model
from algorithms.preflight.check import check, measure_engine, validate_start
from algorithms.preflight.context_window import ContextUse
from algorithms.preflight.fitting import open_context
from algorithms.preflight.memory import cpu_cache_bytes, engine_bytes, sequence_bytes
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.attempts import engine_context
from algorithms.rollout.env_runner import LLMEnvRunner
from r3env.adapters.foreign import ForeignEnv
from r3env.envs.math import MathEnv
from r3env.envs.mixture import MixtureEnv

RUN = RunSettings(name="mine", steps=7)


@pytest.fixture
def config(tiny_model, problems) -> GRPOConfig:
    return in_vllm(GRPOConfig(), tiny_model, problems)


@pytest.fixture
def r3(tiny_model, problems) -> R3GRPOConfig:
    return in_vllm(R3GRPOConfig(), tiny_model, problems)


def in_vllm(config, model, problems):
    return (
        config.environment(data=str(problems), instruction="", reflection_guidance="Again.")
        .rl_module(model=str(model))
        .env_runners(engine="vllm", max_response_tokens=64)
    )


def length_of(config) -> int | None:
    check(config, RUN)
    return config.measured.engine_length


def test_the_longest_prompt_and_its_response_are_the_engines_context(config):
    # 5 + 64 tokens, in blocks of 16.
    assert length_of(config) == 80


def test_a_reflection_prompt_quotes_a_whole_attempt(r3):
    assert length_of(r3) == 144  # 5 + 64 + 8 + 64 = 141
    r3.reflection(max_attempt_tokens=16)
    assert length_of(r3) == 96


def test_the_further_turns_of_an_environment_have_room(config):
    assert length_of(config.environment(max_turns=2)) > 5 + 2 * 64 + 100


def test_one_turn_takes_what_is_expected(config):
    assert length_of(config) == config.measured.engine_context == 80


def test_an_environment_that_ends_its_episodes_itself_may_have_several_turns(config, monkeypatch):
    assert ForeignEnv.has_own_end and not MathEnv.has_own_end
    monkeypatch.setattr(MathEnv, "has_own_end", True)
    assert length_of(config) == 80 and config.measured.engine_context == 512
    mixed = MixtureEnv({"sums": {"id": "r3env/Math-v0", "options": {"data": "embedded:train"}}})
    assert mixed.has_own_end
    mixed.close()


def test_prompts_of_other_forms_count(config, tmp_path):
    forms = tmp_path / "forms.jsonl"
    row = {"problem": "2+3?", "answer": "5", "variants": {"four_choice": {"problem": "x" * 100, "answer": "A"}}}
    forms.write_text(json.dumps(row) + "\n")
    config.environment(data=str(forms), columns={"variants": "variants"})
    assert length_of(config) == 176  # 101 + 64


def test_held_out_prompts_count(config, tmp_path):
    longer = tmp_path / "longer.jsonl"
    longer.write_text(json.dumps({"problem": "+".join(["11"] * 40), "answer": "440"}) + "\n")
    assert length_of(config.evaluation(data=str(longer))) == 192


def test_the_prompt_with_the_most_tokens_need_not_have_the_most_letters(config, problems, tmp_path):
    """A letter is a token here, in whichever script; bytes are only where to look first."""
    file = tmp_path / "scripts.jsonl"
    rows = [{"problem": "é" * 40, "answer": "1"}, {"problem": "a" * 79, "answer": "2"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows * 400))
    assert length_of(config.environment(data=str(file))) == 144  # 79 + 64


def test_the_models_own_context_is_the_most(config):
    config.env_runners(max_response_tokens=400).environment(max_turns=2)
    assert length_of(config) == 512


@pytest.mark.parametrize("named", [{"max_model_len": 300}, {"vllm": {"max_model_len": 300}}])
def test_a_length_that_is_named_is_taken(config, named):
    assert length_of(config.env_runners(**named)) == 300


def test_a_named_length_that_is_too_short_is_an_error(config):
    line = r"^env_runners.max_model_len: 66 tokens do not hold .* fix: env_runners.max_model_len=null, or 69$"
    with pytest.raises(ConfigError, match=line):
        check(config.env_runners(max_model_len=66), RUN)


def test_the_transformers_engine_needs_no_length_and_no_cache_of_a_size(config):
    check(config.env_runners(engine="transformers"), RUN)
    assert config.measured.engine_cache_bytes is None


def test_ray_tune_which_builds_without_a_check_measures_too(config):
    measure_engine(config.env_runners(engine="transformers"))
    assert config.measured.engine_length is None
    measure_engine(config.env_runners(engine="vllm"))
    assert config.measured.engine_length == 80 and config.measured.engine_cache_bytes is not None


def test_prompts_that_are_not_read_yet_refuse_nothing(config):
    config.environment(data="owner/data").env_runners(vllm={"kv_cache_memory_bytes": 1})
    check(config, RUN)
    assert config.measured.engine_length is None


def test_the_length_is_no_setting(config):
    validate_start(config)
    assert config.measured.engine_length == 80
    assert "engine_length" not in json.dumps(config.to_sections())
    assert config.copy(copy_frozen=False).measured.engine_length == 80


BIG = ModelFacts("big", "Qwen3ForCausalLM", 125_000_000, 12, 4, 128, 40_960)


def with_length(length: int, **settings) -> GRPOConfig:
    config = GRPOConfig().env_runners(engine="vllm", dtype="float32", **settings)
    config.measured.engine_length = length
    return config


def test_a_cpus_cache_is_a_gib_or_what_all_sequences_need_or_what_one_needs():
    assert cpu_cache_bytes(with_length(1024), BIG) == 2**30
    assert cpu_cache_bytes(with_length(1024, max_num_seqs=2), BIG) == 2 * sequence_bytes(with_length(1024), BIG)
    whole = with_length(40_960)
    assert cpu_cache_bytes(whole, BIG) == sequence_bytes(whole, BIG) > BIG.cache_bytes(40_960, "float32") > 2**30


@pytest.mark.parametrize(
    ("settings", "context"),
    [
        ({}, 10_624),  # of half a GiB: 48 KiB a token, in blocks of 128 of which two are spare
        ({"max_context_tokens": 4096}, 4096),
        ({"vllm": {"max_num_batched_tokens": 3000}}, 3000),  # a prompt is read as a whole
        ({"vllm": {"kv_cache_memory_bytes": 2**28}}, 2432),
        ({"vllm": {"kv_cache_memory_bytes": 2**20}}, 1024),  # what is expected at least
        ({"max_model_len": 1024}, 1024),  # what is named
    ],
)
def test_a_conversation_has_the_models_context_as_far_as_the_cache_holds_it(settings, context):
    """What an environment writes between two answers is not known: results of tools are long."""
    config = with_length(1024, **settings)
    open_context(config, BIG, several=True)
    assert (config.measured.engine_length, config.measured.engine_context) == (1024, context)
    if context > 1024:
        stated = engine_bytes(config, BIG, ContextUse(8, 16, 16, 16), at_once=1)["cache"]
        assert stated >= config.measured.engine_cache_bytes >= sequence_bytes(config, BIG, context)
        assert engine_context(config, BIG.context) == context
    open_context(config, BIG, several=False)
    assert config.measured.engine_context == 1024


@pytest.mark.parametrize(
    ("gib", "settings", "bounds", "context"),
    [
        (80, {}, {}, 16_384),  # a learner's budget
        (80, {}, {"context": 8192}, 8192),
        (80, {}, {"short_context": 4096}, 4096),  # positions change behind it
        (80, {"vllm": {"kv_cache_memory_bytes": 2**28}}, {}, 2730),  # of half of it
        (80, {"vllm": {"num_gpu_blocks_override": 64}}, {}, 1024),
        (0.5, {}, {}, 1024),
        (None, {}, {}, 1024),  # of a GPU that is not here
    ],
)
def test_half_of_a_gpus_cache_bounds_a_conversation(monkeypatch, gib, settings, bounds, context):
    config, model = with_length(1024, **settings), replace(BIG, **bounds)
    for module in ("fitting", "memory"):
        monkeypatch.setattr(f"algorithms.preflight.{module}.engine_is_on_gpu", lambda config: True)
    found = None if gib is None else SimpleNamespace(least_bytes=gib * 2**30)
    monkeypatch.setattr("algorithms.preflight.memory.found_gpus", lambda: found)
    open_context(config, model, several=True)
    assert config.measured.engine_context == context and config.measured.engine_cache_bytes is None


def test_a_teacher_that_reads_a_conversation_holds_what_is_expected():
    config = with_length(1024).training(mechanisms=["opd"])
    config.apply({"opd": {"teacher": "embedded:tiny"}})
    open_context(config, BIG, several=True)
    assert config.measured.engine_context == 1024


def test_a_checkpoint_of_another_machine_is_measured_again(config, monkeypatch):
    measure_engine(config)
    monkeypatch.setattr("algorithms.preflight.check.validate_sequences", lambda *_: pytest.fail("measured again"))
    measure_engine(config)
    config.measured.host = "elsewhere"
    measured = []
    monkeypatch.setattr("algorithms.preflight.check.validate_sequences", lambda *given: measured.append(given))
    measure_engine(config)
    assert len(measured) == 1


def test_a_cache_that_the_user_names_is_taken(monkeypatch):
    assert cpu_cache_bytes(with_length(64, vllm={"kv_cache_memory_bytes": 5 * 2**20}), BIG) == 5 * 2**20
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    assert cpu_cache_bytes(with_length(64), BIG) == 3 * 2**30


def test_a_cache_without_room_for_one_sequence_is_an_error_before_anything_starts(config):
    config.env_runners(vllm={"kv_cache_memory_bytes": 1000})
    needed = sequence_bytes(with_length(80), validate_model(config))
    line = rf"^env_runners\.vllm\.kv_cache_memory_bytes: leaves 0\.00 GiB .* of 80 tokens takes .*; fix: {needed}, or "
    with pytest.raises(ConfigError, match=line):
        validate_start(config)


def test_the_check_states_the_cache_that_the_engine_will_have(config):
    lines = dict(line.split(maxsplit=2)[::2] for line in check(config, RUN).lines if line.startswith("engine memory"))
    assert "sequences of 80 tokens at a time, or more if shorter" in lines["engine"]
    assert config.measured.engine_cache_bytes == cpu_cache_bytes(config, validate_model(config))


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("max_num_seqs", [4, 64])
def test_vllm_has_the_cache_and_the_context_that_the_check_states(config, max_num_seqs):
    """The line's number of whole sequences is what vLLM's own count of its blocks has room for."""
    lines = check(config.env_runners(max_num_seqs=max_num_seqs, vllm={"enforce_eager": True}), RUN).lines
    stated = next(line for line in lines if "sequences of 80 tokens at a time" in line)
    runner = LLMEnvRunner(config=config)
    try:
        engine = runner.engine.llm.llm_engine
        blocks = engine.engine_core.engine_core.scheduler.kv_cache_config.num_blocks
        block, length = engine.vllm_config.cache_config.block_size, engine.vllm_config.model_config.max_model_len
    finally:
        runner.stop()
    assert length == 80
    tokens = config.measured.engine_cache_bytes / validate_model(config).cache_bytes(1, "float32")
    assert block == 128 and blocks == int(tokens / block)
    assert f" {blocks // 3} sequences of 80 tokens" in stated  # one of 80 tokens is counted as three blocks
