"""Models in the shapes of real families: both engines sample what the learners compute, after an update too."""

import numpy as np
import pytest
import torch

from algorithms.learner.attention import use_packed_attention
from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.weights import full_shapes, full_weights
from algorithms.models.causal_lm import load_causal_lm
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.rollout.engines.base import GenerationRequest
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.types import Sampling
from algorithms.rollout.weight_sync.serialization import TensorsAtHand
from tests.shapes import NOT_IN_FLOAT32, SHAPES, VOCABULARY

# Shorter and longer than the windows; responses go beyond them.
PROMPTS = (3, 9, 30, 61)
TEMPERATURE = 0.8
# Some end earlier: the others' caches are then copied.
LIMITS = (24, 24, 7, 24, 15, 24, 24, 7)
# vLLM is compared with the learner's log-probs, before and after an update, in test_vllm_engine.py for the one, in
# command_line/test_shapes.py for the other.
ELSEWHERE = ("qwen2", "llama")
ENGINES = [
    *(pytest.param("transformers", name, id=f"transformers-{name}") for name in SHAPES),
    *(
        pytest.param("vllm", name, id=f"vllm-{name}", marks=[pytest.mark.vllm, pytest.mark.slow])
        for name in SHAPES
        if name not in (*NOT_IN_FLOAT32, *ELSEWHERE)
    ),
]


def largest_gap(engine, lm) -> float:
    """Between the log-probs of what an engine samples and the learner's of the same tokens."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(8, VOCABULARY, length).astype(np.int32) for length in PROMPTS]
    requests = [
        GenerationRequest(prompt, seed, Sampling(TEMPERATURE, 1.0, limit))
        for seed, (prompt, limit) in enumerate(zip([*prompts, *prompts], LIMITS, strict=True))
    ]
    completions = engine.generate(requests)
    rows = [
        TrainingSample(
            np.concatenate([request.tokens, completion.tokens]),
            np.arange(len(request.tokens) + len(completion.tokens)) >= len(request.tokens),
        )
        for request, completion in zip(requests, completions, strict=True)
    ]
    assert any(row.tokens.max() >= 400 for row in rows), "ids that the tokenizer does not have are sampled too"
    scored = score(lm, rows, ForwardSettings(temperature=TEMPERATURE), entropy=False)
    return max(
        float(np.abs(completion.logprobs - logprobs).max())
        for completion, (logprobs, _) in zip(completions, scored, strict=True)
    )


@pytest.mark.parametrize(("engine_name", "name"), ENGINES)
def test_log_probs_are_the_learners_before_and_after_an_update(shaped_model, engine_name, name):
    folder = str(shaped_model(name))
    lm = load_causal_lm(folder, "float32").eval()
    use_packed_attention(lm)
    engine = make_engine(
        engine_name,
        model=folder,
        dtype="float32",
        max_num_seqs=8,
        eos_token_ids=stop_token_ids(load_tokenizer(folder), folder),
        options={"max_model_len": 128, "enforce_eager": True, "max_num_batched_tokens": 256},
    )
    try:
        assert largest_gap(engine, lm) < 1e-3
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in lm.parameters():
                parameter.add_(0.03 * torch.randn_like(parameter))
        assert largest_gap(engine, lm) > 0.1
        engine.load_weights(TensorsAtHand(full_shapes(lm), full_weights(lm)), 1)
        assert largest_gap(engine, lm) < 1e-3
    finally:
        engine.close()
