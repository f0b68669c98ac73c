"""Models that come with dropout are trained without: an update measures the policy that sampled, not a thinned one."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.model import CausalLMModule
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings

MODELS = {
    "layers": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=2, n_head=2)),
    "functions": lambda: OPTForCausalLM(
        OPTConfig(
            vocab_size=60,
            hidden_size=16,
            ffn_dim=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            word_embed_proj_dim=16,
            attention_dropout=0.1,
        )
    ),
}


@pytest.fixture(params=MODELS)
def folder(request, tmp_path):
    torch.manual_seed(0)
    MODELS[request.param]().save_pretrained(tmp_path)
    return tmp_path


def test_an_update_computes_the_log_probs_of_scoring(folder):
    lm = CausalLMModule(model_config={"model": str(folder), "dtype": "float32"}).lm
    rng = np.random.default_rng(0)
    rows = [
        TrainingSample(
            tokens=rng.integers(3, 60, 12).astype(np.int32),
            loss_mask=np.arange(12) >= 4,
            advantages=advantage,
            weight=0.1,
            sampling_logprobs=np.zeros(8, np.float32),
        )
        for advantage in (1.0, -1.0, 0.0)
    ]
    lm.train()
    statistics = accumulate_gradients(lm, rows, ForwardSettings(), LossSettings(importance_cap=0.0))
    lm.eval()
    expected = score(lm, rows, ForwardSettings(), entropy=False)
    for index, (logprobs, _) in enumerate(expected):
        np.testing.assert_allclose(statistics.old_logprobs[index], logprobs, atol=1e-6)
