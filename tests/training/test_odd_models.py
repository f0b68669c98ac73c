"""Model folders with what transformers does not save, and such as change or go while a run trains."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, GenerationConfig

from algorithms.config.errors import ConfigError
from algorithms.models.names import resolve_model
from algorithms.publishing.model_folder import export
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copytree(resolve_model("embedded:tiny"), tmp_path / "model"))


def test_a_generation_config_that_transformers_refuses_to_save_is_kept(grpo_config, build, model, tmp_path):
    came_with = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2]}
    (model / "generation_config.json").write_text(json.dumps(came_with))
    algorithm = build(grpo_config.rl_module(model=str(model)))
    saved = save_checkpoint(algorithm, tmp_path / "run" / "checkpoints")
    export(tmp_path / "run", tmp_path / "out")
    for folder in (saved / "model", tmp_path / "out"):
        kept = json.loads((folder / "generation_config.json").read_text())
        assert kept.items() >= came_with.items()
        assert GenerationConfig.from_pretrained(folder).eos_token_id == [1, 2]


def test_a_checkpoint_can_be_written_when_the_model_is_gone_from_where_it_came(grpo_config, build, model, tmp_path):
    """The checkpoint of another run that is pruned by now, a scratch disk, a page of the Hub."""
    algorithm = build(grpo_config.rl_module(model=str(model)))
    shutil.rmtree(model)
    saved = save_checkpoint(algorithm, tmp_path)
    assert AutoModelForCausalLM.from_pretrained(saved / "model").config.vocab_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("needs_it", [True, False])
def test_a_run_that_needs_its_first_model_is_told_when_it_is_another(
    grpo_config, build, model, tmp_path, caplog, needs_it
):
    config = grpo_config.rl_module(model=str(model)).training(beta=0.1 if needs_it else 0.0)
    saved = save_checkpoint(build(config.copy()), tmp_path)
    load_checkpoint(build(config.copy()), saved)
    assert "another model" not in caplog.text
    lm = AutoModelForCausalLM.from_pretrained(model)
    lm.lm_head.weight.data.mul_(0.5)
    lm.save_pretrained(model)
    load_checkpoint(build(config.copy()), saved)
    assert ("rl_module.model is another model" in caplog.text) == needs_it


def test_a_folder_with_an_adapter_is_refused_in_python_too(grpo_config, model):
    (model / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="comes with an adapter"):
        grpo_config.rl_module(model=str(model)).build_algo()
