"""`run.start_from` and `run.start_with`: a new run from the weights, an adapter or parts of another one."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig

from algorithms.config.errors import ConfigError
from algorithms.config.sections import RunSettings
from algorithms.evaluation.results import digest_model
from algorithms.grpo.config import GRPOConfig
from algorithms.learner.group import tensor_buckets
from algorithms.models.names import resolve_model
from algorithms.train.checkpoints import save_checkpoint
from algorithms.train.manifest import write_manifest
from algorithms.train.run_directory import RunDirectory
from algorithms.train.start_from import find_start, start_from

from .runs_of import largest_difference, train, weights

ALL = ["optimizer", "history", "queries"]


def started(algorithm, folder, settings):
    """The algorithm as a new run of the command starts it."""
    directory = RunDirectory.create(folder, "new", "{}")
    algorithm.keep_state_in(directory.path)
    start_from(algorithm, settings, directory)
    return directory


def optimizer(algorithm):
    return {
        name: tensor
        for bucket in tensor_buckets(algorithm.learner_group, "optimizer")
        for name, tensor in bucket.items()
    }


def test_parts_are_those_of_the_checkpoint_and_the_steps_begin_anew(r3_config, build, tmp_path, small_pool):
    config = r3_config.environment(data=small_pool)
    run = RunDirectory.create(tmp_path, "first", "{}")
    first = build(config.copy())
    first.keep_state_in(run.path)
    train(first, 2)
    save_checkpoint(first, run.checkpoints_folder)
    stored, then, drawn = len(first.history), optimizer(first), first.sampler.drawn
    before = weights(first)
    train(first, 1)  # the source goes on: its history grows past the checkpoint
    settings = find_start(RunSettings(start_from=str(run.path), start_with=ALL), config)
    assert settings.start_from == str(run.checkpoints_folder / "step_000002")
    second = build(config.copy())
    directory = started(second, tmp_path, settings)
    assert largest_difference(weights(second), before) == 0
    now = optimizer(second)
    assert now.keys() == then.keys() and all(torch.equal(now[name], then[name]) for name in then)
    assert (len(second.history), second.sampler.drawn, second.steps_done) == (stored, drawn, 0)
    assert second.rollout_workers.version == 1, "an engine that starts anew has version 0, of the model's own weights"
    assert second.history.path == directory.history_file
    (record,) = train(second, 1)
    assert second.steps_done == 1 and record["policy/logp_mismatch_max"] < 1e-4


def test_queries_that_a_run_had_drawn_ahead_and_not_trained_on_come_first(grpo_config, build, tmp_path):
    config = grpo_config.env_runners(num_env_runners=1).training(max_off_policy_steps=1)
    run = RunDirectory.create(tmp_path, "first", "{}")
    first = build(config.copy())
    first.keep_state_in(run.path)
    train(first, 1)
    trained = len(first.batch.rolled_out)
    save_checkpoint(first, run.checkpoints_folder)
    assert first.sampler.drawn > trained
    second = build(grpo_config.copy())
    started(second, tmp_path, find_start(RunSettings(start_from=str(run.path), start_with=["queries"]), grpo_config))
    assert second.sampler.drawn == trained


def test_a_resume_without_a_history_in_the_checkpoint_forgets_what_came_behind_it(r3_config, grpo_config, build):
    arrays, state = build(grpo_config).get_training_state()
    later = build(r3_config)
    train(later, 1)
    assert len(later.history)
    later.set_training_state(arrays, state)
    assert len(later.history) == 0


def test_a_restart_that_fails_while_weights_are_pushed_leaves_the_history(r3_config, build, monkeypatch):
    algorithm = build(r3_config)
    begun = algorithm.get_training_state()
    train(algorithm, 1)
    stored = len(algorithm.history)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(algorithm.rollout_workers, "push_weights", interrupted)
    with pytest.raises(KeyboardInterrupt):
        algorithm.set_training_state(*begun)
    assert len(algorithm.history) == stored > 0


def test_an_adapter_goes_on_beside_its_base(grpo_config, build, tmp_path):
    config = grpo_config.rl_module(lora_rank=2, lora_alpha=4.0)
    first = build(config.copy())
    train(first, 1)
    saved = save_checkpoint(first, tmp_path / "checkpoints")
    adapter = shutil.copytree(saved / "adapter", tmp_path / "adapter")
    second = build(config.copy())
    started(second, tmp_path, find_start(RunSettings(start_from=str(adapter)), config))
    assert largest_difference(weights(second), weights(first)) == 0
    (record,) = train(second, 1)
    assert record["policy/logp_mismatch_max"] < 1e-4


@pytest.mark.parametrize(
    "field",
    [
        {"use_rslora": True},
        {"use_dora": True},
        {"alora_invocation_tokens": [1, 2]},
        {"rank_pattern": {"q_proj": 4}},
        {"alpha_pattern": {"q_proj": 4}},
        {"modules_to_save": ["lm_head"]},
        {"layers_to_transform": [0]},
        {"target_parameters": ["experts.gate_up_proj"]},
        {"trainable_token_indices": [3]},
        {"lora_bias": True},
        {"bias": "all"},
        {"init_lora_weights": "pissa_niter_4"},
        {"peft_type": "LOHA"},
    ],
    ids=lambda field: next(iter(field)),
)
def test_an_adapter_that_is_not_plain_is_refused(tmp_path, field):
    config, adapter = GRPOConfig().rl_module(lora_rank=8, lora_alpha=16.0), tmp_path / "adapter_config.json"
    plain = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj"], task_type="CAUSAL_LM")
    plain.save_pretrained(str(tmp_path))
    settings = RunSettings(start_from=str(tmp_path))
    assert find_start(settings, config).start_from == str(tmp_path)
    adapter.write_text(json.dumps(json.loads(adapter.read_text()) | field))
    with pytest.raises(ConfigError, match=f"^run.start_from: the adapter in .* has {next(iter(field))}=.*; fix: "):
        find_start(settings, config)


def test_an_adapter_beside_another_base_is_warned_of(tmp_path, caplog):
    config = GRPOConfig().rl_module(model="embedded:tiny", lora_rank=8, lora_alpha=16.0)
    for base, warns in ((resolve_model("embedded:tiny"), False), ("runs/first-sft/model", True), (None, False)):
        LoraConfig(r=8, lora_alpha=16, base_model_name_or_path=base).save_pretrained(str(tmp_path))
        caplog.clear()
        find_start(RunSettings(start_from=str(tmp_path)), config)
        assert ("was trained beside runs/first-sft/model, and goes beside" in caplog.text) == warns
        assert bool(caplog.records) == warns


@pytest.mark.parametrize("same", [True, False])
def test_the_base_of_a_checkpoint_is_known_wherever_it_lies(tmp_path, caplog, same):
    config = GRPOConfig().rl_module(model="embedded:tiny", lora_rank=8, lora_alpha=16.0)
    checkpoint = tmp_path / "checkpoints/step_000002"
    LoraConfig(r=8, lora_alpha=16, base_model_name_or_path="moved").save_pretrained(str(checkpoint / "adapter"))
    digest = digest_model(config.rl_module_settings) if same else "another"
    (checkpoint / "state.json").write_text(json.dumps({"model": digest}))
    write_manifest(checkpoint)
    find_start(RunSettings(start_from=str(tmp_path)), config)
    assert ("was trained beside moved" in caplog.text) != same


@pytest.mark.parametrize("part", ALL)
def test_a_supervised_start_has_weights_alone(tmp_path, part):
    checkpoint = tmp_path / "checkpoints/step_000002"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "state.json").write_text('{"step": 2, "metrics": {}}')
    write_manifest(checkpoint)
    with pytest.raises(
        ConfigError, match=f"^run.start_with: .* has no {part} for these weights; fix: leave {part} out"
    ):
        find_start(RunSettings(start_from=str(tmp_path), start_with=[part]), GRPOConfig())


# -- Refused before anything starts ------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path):
    """Folders that are mistaken for one to start from, and an adapter of rank 8."""
    for name in ("model", "nothing", "adapter", "young/checkpoints", "damaged/checkpoints/step_000002"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16}))
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"start_from": "nothing"}, "no run, checkpoint or adapter"),
        ({"start_from": "missing"}, "no run, checkpoint or adapter"),
        ({"start_from": "model"}, "is a model; fix: rl_module.model="),
        ({"start_from": "young"}, "has no checkpoint yet"),
        ({"start_from": "damaged"}, "is damaged, manifest.json is missing; fix: name an earlier checkpoint"),
        ({"start_from": "adapter"}, "fix: rl_module.lora_rank=8 rl_module.lora_alpha=16"),
        ({"start_from": "adapter", "start_with": ["optimizer"]}, "fix: run.start_with=[]"),
        ({"start_with": ["history"]}, "fix: name the checkpoint in run.start_from"),
    ],
)
def test_what_a_run_cannot_start_from_is_named(places, settings, said):
    if "start_from" in settings:
        settings["start_from"] = str(places / settings["start_from"])
    with pytest.raises(ConfigError, match="^run.start_") as error:
        find_start(RunSettings(**settings), GRPOConfig())
    assert said in str(error.value)
