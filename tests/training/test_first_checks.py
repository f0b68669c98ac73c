"""Before the first update: a learner that is not its model, and an engine that is not the learner, are refused."""

import json
import shutil

import pytest

from algorithms.config.errors import ConfigError
from algorithms.models.names import resolve_model
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from algorithms.train.main import main

from .runs_of import largest_difference, train, weights

MODELING = """from transformers import {parent}


class Broken({parent}):
    def __init__(self, config):
        super().__init__(config)
        self.lm_head.register_forward_hook(lambda module, inputs, logits: 0.5 * logits)
"""
SCALED = ("granite", "cohere2", "falcon_h1")


@pytest.fixture
def broken(tmp_path):
    """The embedded model, with code of its own that scales its logits behind the head."""
    folder = tmp_path / "broken"
    shutil.copytree(resolve_model("embedded:tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "modeling_broken.py").write_text(MODELING.format(parent=config["architectures"][0]))
    config |= {"architectures": ["Broken"], "auto_map": {"AutoModelForCausalLM": "modeling_broken.Broken"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_with_a_scaled_head_ends_the_command_before_its_first_step(broken, tmp_path, capsys, ray_session):
    settings = [f"rl_module.model={broken}", "rl_module.trust_remote_code=true", "environment.data=embedded:train"]
    settings += [
        f"run.dir={tmp_path}",
        "run.name=run",
        "env_runners.max_response_tokens=16",
        "evaluation.samples=1",
        "evaluation.k=[1]",
    ]
    assert main("grpo", settings) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: rl_module.model: the learner's log-probs of 240 tokens differ")
    assert "the scale of the logits, as its forward multiplies the head's product by 0.5" in line
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or not (tmp_path / "run" / "metrics.jsonl").read_text()


def scale_head(algorithm):
    lm = algorithm.learner_group._learner.lm
    return lm.get_output_embeddings().register_forward_hook(lambda module, inputs, logits: 0.5 * logits)


@pytest.mark.parametrize("rank", [0, 4])
def test_nothing_is_trained_by_a_learner_that_is_not_its_model(grpo_config, build, rank):
    algorithm = build(grpo_config.rl_module(lora_rank=rank))
    before = weights(algorithm)
    scale_head(algorithm)
    for _ in range(2):
        with pytest.raises(ConfigError, match="by 0.5"):
            algorithm.train()
    assert algorithm.steps_done == 0 and largest_difference(before, weights(algorithm)) == 0


def test_a_resumed_run_is_checked_again(grpo_config, build, tmp_path):
    first = build(grpo_config.copy())
    train(first, 1)
    saved = save_checkpoint(first, tmp_path)
    second = build(grpo_config.copy())
    load_checkpoint(second, saved)
    scale_head(second)
    with pytest.raises(ConfigError, match="by 0.5"):
        second.train()
    assert second.steps_done == 1


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_engine_of_another_model_is_refused_before_the_first_update(grpo_config, build, ahead):
    config = grpo_config.training(max_off_policy_steps=ahead).env_runners(num_env_runners=min(1, ahead))
    algorithm = build(config)
    before = weights(algorithm)

    def flatten(runner):  # here, as actors cannot import a test's module
        head = runner.engine.model.get_output_embeddings()
        return bool(head.register_forward_hook(lambda module, inputs, logits: 0.1 * logits))

    assert algorithm.env_runner_group.foreach_env_runner(flatten, local_env_runner=not ahead) == [True]
    with pytest.raises(ConfigError, match="the engine's log-probs of .* differ from the learner's by"):
        algorithm.train()
    assert algorithm.can_be_saved and largest_difference(before, weights(algorithm)) == 0


@pytest.mark.parametrize("name", SCALED)
def test_models_that_scale_their_logits_train_with_equal_log_probs(r3_config, build, shaped_model, name):
    config = r3_config.rl_module(model=str(shaped_model(name))).env_runners(max_response_tokens=12)
    # A random model solves nothing: it learns from the order of its entropies.
    algorithm = build(config.training(queries_per_step=3, lr=1e-3, minibatches=1).ranking(order="entropy"))
    before = weights(algorithm)
    for record in train(algorithm, 2):
        assert record["policy/logp_mismatch_max"] < 1e-3
    assert largest_difference(before, weights(algorithm)) > 1e-4
