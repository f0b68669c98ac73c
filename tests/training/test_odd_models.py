"""A model folder with what transformers loads and does not save."""

import json
import shutil
from pathlib import Path

from transformers import GenerationConfig

from algorithms.export import export
from algorithms.models.names import resolve_model
from algorithms.script.checkpoint import save_checkpoint


def test_a_generation_config_that_transformers_refuses_to_save_is_kept(grpo_config, build, tmp_path):
    model = Path(shutil.copytree(resolve_model("embedded:tiny"), tmp_path / "model"))
    came_with = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2]}
    (model / "generation_config.json").write_text(json.dumps(came_with))
    algorithm = build(grpo_config.rl_module(model=str(model)))
    saved = save_checkpoint(algorithm, tmp_path / "run" / "checkpoints")
    export(tmp_path / "run", tmp_path / "out")
    for folder in (saved / "model", tmp_path / "out"):
        kept = json.loads((folder / "generation_config.json").read_text())
        assert kept.items() >= came_with.items()
        assert GenerationConfig.from_pretrained(folder).eos_token_id == [1, 2]
