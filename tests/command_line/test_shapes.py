"""Models in the shapes of real families through the commands, with vLLM: train, evaluate, export, load.

Runs on a CPU in float32. `make test-slow ARGS=tests/command_line/test_shapes.py` prints a line for each shape.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from algorithms.export import main as export
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.rollout.engines.base import GenerationRequest
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.types import Sampling
from r3env import chat
from tests.shapes import BY_COMMANDS

from .conftest import rows

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

SETTINGS = [
    "run.name=shape",
    "run.seed=4",
    "run.steps=2",
    "run.checkpoint_every=1",
    "environment.data=embedded:train",
    "env_runners.engine=vllm",
    # Also where CUDA makes bfloat16 the default: log-probs are compared closely.
    "env_runners.dtype=float32",
    "rl_module.dtype=float32",
    "env_runners.max_response_tokens=24",
    "env_runners.max_num_seqs=16",
    "env_runners.vllm={enforce_eager: true}",
    "training.queries_per_step=3",
    "training.group_size=4",
    "training.warmup_steps=0",
    "training.lr=1e-3",
    # A random model solves nothing: it learns from the order of its entropies, and is held back by the reference.
    "ranking.order=entropy",
    "training.beta=0.01",
    "evaluation.data=embedded:heldout",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.limit=2",
]


def policy_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:06d}" / "model" / "model.safetensors"


@pytest.fixture(scope="module", params=[name for name in BY_COMMANDS if name != "qwen3"])  # it is in test_real_sizes
def trained(request, shaped_model, run_command, tmp_path_factory):
    """A run of two steps."""
    folder = tmp_path_factory.mktemp(request.param)
    done = run_command(*SETTINGS, f"rl_module.model={shaped_model(request.param)}", f"run.dir={folder}")
    assert done.returncode == 0, done.stderr
    return folder / "shape"


def test_engine_and_learner_agree_in_both_steps_and_both_change_the_weights(trained):
    first, second = rows(trained)
    for row in (first, second):
        assert row["rollout/engine"] == "vllm"
        assert row["policy/logp_mismatch_max"] < 1e-3
        assert row["policy/grad_norm"] > 0
    assert second["policy/kl"] > 0, "the engine samples with what the first step made of the model"
    before, after = (load_file(policy_of(trained, step)) for step in (1, 2))
    assert before.keys() == after.keys()
    assert not torch.equal(before["model.norm.weight"], after["model.norm.weight"])


@pytest.mark.parametrize("trained", ["gemma3"], indirect=True)
def test_the_run_is_evaluated_with_vllm(trained, surroundings, tmp_path):
    command = [sys.executable, "-m", "algorithms.evaluate", "--model", str(trained), "--out", str(tmp_path / "scores")]
    done = subprocess.run([*command, "--samples", "2"], env=surroundings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "scores" / "scores.json").read_text())


def test_transformers_and_vllm_load_the_export_and_agree(trained, tmp_path):
    check_export(trained, tmp_path / "out")


def check_export(run: Path, exported: Path) -> None:
    """Export a run of two steps: transformers loads its weights, and vLLM samples with transformers' log-probs."""
    assert export([str(run), str(exported)]) == 0
    lm, report = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    stored = load_file(policy_of(run, 2))
    assert all(torch.equal(tensor, lm.state_dict()[name]) for name, tensor in stored.items())
    tokenizer = load_tokenizer(str(exported))
    prompt = np.array(chat.first_turn(tokenizer, [{"role": "user", "content": "1+2="}]), np.int32)
    engine = make_engine(
        "vllm",
        model=str(exported),
        dtype="float32",
        max_num_seqs=4,
        eos_token_ids=stop_token_ids(tokenizer, str(exported)),
        options={"max_model_len": 128, "enforce_eager": True},
    )
    try:
        (completion,) = engine.generate([GenerationRequest(prompt, 1, Sampling(1.0, 1.0, 24))])
    finally:
        engine.close()
    tokens = torch.from_numpy(np.concatenate([prompt, completion.tokens]).astype(np.int64))[None]
    with torch.no_grad():
        logprobs = lm.eval()(input_ids=tokens).logits[0].log_softmax(-1)
    places = torch.arange(len(prompt), tokens.shape[1])
    np.testing.assert_allclose(completion.logprobs, logprobs[places - 1, tokens[0, places]].numpy(), atol=1e-3)
