"""Weights that are larger than Ray's object store go over the disk; a disk that is full as well is one line."""

import subprocess
from pathlib import Path

import pytest

from .conftest import rows

pytestmark = pytest.mark.slow

STORE_BYTES = 80 * 2**20  # Ray takes no less than 75 MiB
SMALL_STORE = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(STORE_BYTES)}
# The share of the disk from which on Ray spills no more: however full this machine's is, and as if it were full.
ANY_DISK, FULL_DISK = ({"RAY_local_fs_capacity_threshold": share} for share in ("1", "0.0001"))


@pytest.fixture(scope="module")
def large_model(tmp_path_factory) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from benchmarks.embedded_model.build import build_tokenizer

    tokenizer, folder = build_tokenizer(), tmp_path_factory.mktemp("models") / "large"
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=512,
            intermediate_size=4096,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=1,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    assert sum(weights.nbytes for weights in model.parameters()) > 1.2 * STORE_BYTES
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def train(command, surroundings, large_model, tmp_path):
    """Two steps of the large model with a remote env runner, in a Ray with a small object store."""

    def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        settings = [
            *(f"rl_module.model={large_model}", f"run.dir={tmp_path}", "run.name=run", "run.steps=2"),
            *("env_runners.num_env_runners=1", "env_runners.max_response_tokens=4"),
            *("env_runners.weight_transfer=object_store", "training.queries_per_step=2", "training.group_size=2"),
            *("evaluation.samples=1", "evaluation.k=[1]", "evaluation.limit=1", "evaluation.interval=0"),
        ]
        return subprocess.run(
            command(*settings, algorithm="grpo"),
            env=surroundings | SMALL_STORE | environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


def test_weights_larger_than_the_object_store_are_spilled(train, tmp_path):
    process = train(ANY_DISK)
    assert process.returncode == 0, process.stderr
    trained = rows(tmp_path / "run")
    assert [row["step"] for row in trained] == [1, 2]
    assert all(row["rollout/prompts_completed"] == row["rollout/prompts_expected"] == 2 for row in trained)
    assert all(row["policy/logp_mismatch_max"] < 1e-3 for row in trained), "sampled with the weights that were sent"


def test_where_nothing_can_be_spilled_one_line_says_so(train):
    process = train(FULL_DISK)
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert last.startswith("error: No space left on device (Local disk is full") and "--resume" in last
    assert "Traceback" not in process.stderr
