"""A model with the vocabulary and the context of real ones trains with vLLM on a CPU, with next to nothing set.

Its export is loaded as those of the small shapes are.
"""

import json

import pytest
import torch

from tests.shapes import enlarge

from .conftest import rows
from .test_shapes import check_export

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

# The longest real context and the largest real vocabulary; most parameters are in the vocabulary.
SIZES = {"vocab_size": 256_000, "max_position_embeddings": 262_144, "head_dim": 128, "num_hidden_layers": 2}
WIDTHS = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2}


def test_a_model_of_real_size_trains_with_nothing_set_but_model_data_lengths_and_sizes_and_is_exported(
    shaped_model, run_command, tmp_path
):
    model = enlarge(shaped_model("qwen3"), tmp_path / "model", **SIZES, **WIDTHS)
    for name, first in (("train", 10), ("heldout", 50)):
        lines = [json.dumps({"problem": f"What is {n} + {n}?", "answer": str(2 * n)}) for n in range(first, first + 8)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    settings = [
        f"rl_module.model={model}",
        f"environment.data={tmp_path / 'train.jsonl'}",
        f"evaluation.data={tmp_path / 'heldout.jsonl'}",
        *("env_runners.engine=vllm", "env_runners.max_response_tokens=32"),
        *("training.group_size=4", "training.queries_per_step=2", "run.steps=2", "evaluation.limit=2"),
        *(f"run.dir={tmp_path}", "run.name=run"),
    ]
    done = run_command(*settings)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    # Beside CUDA both ends compute in bfloat16 by default, whose rounding leaves only the mean small.
    gap, most = ("mean", 0.05) if torch.cuda.is_available() else ("max", 1e-3)
    assert [row[f"policy/logp_mismatch_{gap}"] < most for row in rows(tmp_path / "run")] == [True, True]
    stages = [line for line in done.stderr.splitlines() if line.startswith("starting  ")]
    assert any("engine: loading weights" in line for line in stages)
    assert any("compiling and warming up" in line for line in stages)
    check_export(tmp_path / "run", tmp_path / "out")
