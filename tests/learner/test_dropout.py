"""Models that come with dropout or noise are trained without: an update measures the policy that sampled."""

import numpy as np
import pytest
import torch
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
)

from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.model import CausalLMModule, set_update_mode
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings

SMALL = {"vocab_size": 60, "hidden_size": 16, "num_attention_heads": 2}
OPT = SMALL | {"ffn_dim": 32, "max_position_embeddings": 32, "word_embed_proj_dim": 16}
MODELS = {
    "layers": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=2, n_head=2)),
    "functions": lambda: OPTForCausalLM(OPTConfig(**OPT, num_hidden_layers=2, attention_dropout=0.1)),
    "whole layers": lambda: OPTForCausalLM(OPTConfig(**OPT, num_hidden_layers=8, layerdrop=0.5)),
    "read from the configuration": lambda: FalconForCausalLM(
        FalconConfig(**SMALL, num_hidden_layers=2, hidden_dropout=0.1)
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


@pytest.mark.parametrize("checkpointing", [False, True])
def test_routers_draw_nothing_in_an_update_and_layers_are_recomputed_where_that_is_set(checkpointing):
    torch.manual_seed(0)
    lm = PhimoeForCausalLM(
        PhimoeConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            router_jitter_noise=0.5,
            initializer_range=0.5,
        )
    )
    tokens = torch.arange(20)[None]
    if checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with torch.no_grad():
        scored, drawn = (mode(lm)(input_ids=tokens).logits for mode in (type(lm).eval, type(lm).train))
    assert not torch.allclose(scored, drawn, atol=0.1)
    passes = []
    lm.get_decoder().layers[0].mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    set_update_mode(lm)
    updated = lm(input_ids=tokens).logits
    updated.sum().backward()
    assert torch.equal(updated, scored)
    assert len(passes) == 1 + checkpointing
