"""A teacher beside the policy: what `--check` says of it, and which one is refused in one line."""

import json
import re
import shutil
from pathlib import Path

import pytest

from algorithms.config.errors import shown
from algorithms.config.loading import load
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.models.names import resolve_model, validate_model
from algorithms.preflight.check import check, validate_start
from algorithms.preflight.memory import learner_bytes

OPD = ["training.mechanisms=[opd]", "environment.data=embedded:train", "rl_module.dtype=float32"]


def configured(*overrides):
    return load(None, [*OPD, *overrides], GRPOConfig)


def test_a_check_names_the_teacher_and_counts_its_memory():
    config, run = configured()
    lines = check(config, run).lines
    model = validate_model(config)
    parts = learner_bytes(config, model)
    assert parts["teacher"] == model.weight_bytes("float32") and "reference" not in parts
    assert any(line.startswith("teacher") and "embedded:teacher: 826,240 parameters" in line for line in lines)
    config.rl_module(lora_rank=4)
    assert learner_bytes(config, model)["teacher"] == parts["teacher"]
    halved, run = configured("rl_module.dtype=bfloat16")
    check(halved, run)
    assert 2 * learner_bytes(halved, model)["teacher"] == parts["teacher"], "frozen, in the type that is computed in"
    without, run = configured("opd.enabled=false")
    assert "teacher" not in "".join(check(without, run).lines) and "teacher" not in learner_bytes(without, model)


def test_a_mechanism_has_learners_keep_a_reference_without_a_penalty():
    for overrides, needed in ((["ace"], True), (["opd", "sdpo"], False), (["ace", "opd"], True)):
        config, _ = load(None, [f"training.mechanisms=[{','.join(overrides)}]"], GRPOConfig)
        assert config.training_settings.beta == 0 and config.needs_reference == needed
        parts = learner_bytes(config, validate_model(config))
        assert ("reference" in parts) == needed
    assert not load(None, ["training.mechanisms=[ace]", "ace.enabled=false"], GRPOConfig)[0].needs_reference
    assert load(None, ["training.beta=0.1"], GRPOConfig)[0].needs_reference


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_model("embedded:tiny"), tmp_path / "teacher"))


@pytest.mark.parametrize("started", [False, True])
def test_a_teacher_that_is_no_model_is_one_line_that_names_its_setting(tmp_path, started):
    config, run = configured(f"opd.teacher={tmp_path / 'nowhere'}")
    with pytest.raises(ConfigError, match=r"^opd\.teacher: '.* is neither a folder nor a Hub id") as raised:
        validate_start(config) if started else check(config, run)
    assert "rl_module" not in str(raised.value)
    (copied(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"^opd\.teacher: '.* has no weights"):
        check(*configured(f"opd.teacher={tmp_path / 'teacher'}"))


def test_a_teacher_that_writes_in_other_tokens_is_refused(tmp_path):
    folder = copied(tmp_path)
    check(*configured(f"opd.teacher={folder}"))
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    vocabulary = data["model"]["vocab"]
    first, second = [token for token, number in vocabulary.items() if number in (40, 41)]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(data))
    line = (
        rf"^opd\.teacher: {re.escape(shown(str(folder)))} does not use the tokens of 'embedded:tiny' \('.' is "
        r"another token\); fix: name a model with the same tokenizer$"
    )
    with pytest.raises(ConfigError, match=line):
        check(*configured(f"opd.teacher={folder}"))


def test_learners_hold_one_teacher(tmp_path, monkeypatch):
    (tmp_path / "another_teacher.py").write_text(
        "from algorithms.methods.opd import OPD\n\n\nclass Second(OPD):\n    section = 'second'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    both = ["training.mechanisms=[opd,another_teacher:Second]"]
    load(None, both, GRPOConfig)[0].check_settings()
    with pytest.raises(ConfigError) as raised:
        load(None, [*both, "second.teacher=embedded:tiny"], GRPOConfig)[0].check_settings()
    assert str(raised.value) == (
        "second.teacher: 'embedded:tiny' is not that of opd, and learners hold only one; "
        "fix: second.teacher=embedded:teacher"
    )
    with pytest.raises(ConfigError, match=r"^second.teacher_revision: null is not that of opd, .*teacher_revision=v1$"):
        load(None, [*both, "opd.teacher_revision=v1"], GRPOConfig)[0].check_settings()


@pytest.mark.parametrize("method", ["mechanisms=[opd]", "advantage=rl_zvp"])
def test_a_kl_in_the_reward_that_would_weigh_nothing_is_refused(method):
    named = [f"training.{method}", "training.kl_in=reward", "training.beta=0.1"]
    with pytest.raises(ConfigError, match=r"^training.beta: 0.1 in the reward .*; fix: training.kl_in=loss$"):
        load(None, named, GRPOConfig)


def test_a_text_of_sdpo_says_where_the_solution_goes():
    with pytest.raises(ConfigError, match=r"^sdpo\.solution_text: 'Look' has no \{solution\}; fix: write \{solution\}"):
        load(None, ["training.mechanisms=[sdpo]", "sdpo.solution_text=Look"], GRPOConfig)[0].check_settings()


def test_a_teacher_of_a_shorter_context_is_refused(tmp_path):
    folder = shutil.copytree(resolve_model("embedded:teacher"), tmp_path / "short")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    for test in (check, lambda config, run: validate_start(config)):
        with pytest.raises(ConfigError, match=r"^opd.teacher: '.* has a context of 32 tokens, and prompt and"):
            test(*configured(f"opd.teacher={folder}", "env_runners.max_response_tokens=48"))


@pytest.mark.parametrize("shared", ["ratio_level=sequence", "objective=gmpo"])
@pytest.mark.parametrize("method", ["opd", "sdpo", "rl_zvp", "hgpo"])
def test_advantages_of_tokens_and_one_ratio_for_a_response_are_refused(method, shared):
    named = f"advantage={method}" if method in ("rl_zvp", "hgpo") else f"mechanisms=[{method}]"
    config, _ = load(None, [f"training.{named}"], GRPOConfig)
    config.check_settings()
    with pytest.raises(ConfigError, match=f"^training.{shared.replace('=', ': ')} has one ratio .* and {method} gives"):
        load(None, [f"training.{named}", f"training.{shared}"], GRPOConfig)[0].check_settings()
