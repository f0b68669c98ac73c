"""Models in the shapes of real families: what learners compute is what transformers' own class of the model says."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from algorithms.config.errors import ConfigError
from algorithms.learner.attention import is_packed, use_packed_attention
from algorithms.learner.batch import TrainingSample
from algorithms.learner.flops import ModelShape
from algorithms.learner.forward import ForwardSettings, score
from algorithms.models.causal_lm import load_causal_lm
from tests.shapes import COMPOSITE, PADDED, SHAPES, VOCABULARY

# Longer and shorter than the windows; more than one to a micro-batch.
LENGTHS = (40, 9, 23, 70, 12)


def whole_model(folder):
    """The class that the folder itself names, its vision tower included, with attention that leaves nothing out."""
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    auto = getattr(transformers, architecture)
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def rows():
    rng = np.random.default_rng(0)
    return [
        TrainingSample(rng.integers(5, VOCABULARY, length).astype(np.int32), np.arange(length) > length // 3)
        for length in LENGTHS
    ]


def own_logprobs(model, row, temperature):
    tokens = torch.from_numpy(row.tokens.astype(np.int64))[None]
    with torch.no_grad():
        logprobs = (model(input_ids=tokens).logits[0] / temperature).log_softmax(-1)
    places = torch.from_numpy(np.flatnonzero(row.loss_mask))
    return logprobs[places - 1, tokens[0, places]].numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_log_probs_are_those_of_the_models_own_class(shaped_model, name):
    folder = shaped_model(name)
    lm, whole = load_causal_lm(str(folder), "float32").eval(), whole_model(folder)
    use_packed_attention(lm)
    assert is_packed(lm) == (name not in PADDED)
    scored = score(lm, rows(), ForwardSettings(temperature=0.7, token_budget=100), entropy=False)
    for row, (logprobs, _) in zip(rows(), scored, strict=True):
        np.testing.assert_allclose(logprobs, own_logprobs(whole, row, 0.7), atol=1e-4)


@pytest.mark.parametrize("name", COMPOSITE)
def test_of_a_composite_model_learners_have_the_text_alone_and_its_head(shaped_model, name):
    folder = shaped_model(name)
    lm, whole = load_causal_lm(str(folder), "float32"), whole_model(folder)
    assert not any("vision" in key or "visual" in key for key in lm.state_dict())
    assert torch.equal(lm.get_output_embeddings().weight, whole.get_output_embeddings().weight)
    assert lm.get_output_embeddings().weight is lm.get_input_embeddings().weight


def test_a_weight_that_no_file_has_is_an_error_and_not_drawn_at_random(shaped_model, tmp_path):
    folder = shutil.copytree(shaped_model("llama"), tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 of its weights, 'lm_head\.weight' for one; fix: "):
        load_causal_lm(str(folder), "float32")


def test_tables_of_embeddings_and_linear_attention_cost_no_products_of_attention(shaped_model):
    gemma = load_causal_lm(str(shaped_model("gemma4")), "float32")
    tables = [gemma.model.embed_tokens.weight, gemma.model.embed_tokens_per_layer.weight]
    products = sum(tensor.numel() for tensor in gemma.model.parameters() if tensor.ndim == 2)
    assert ModelShape.of(gemma).weights == products - sum(table.numel() for table in tables)
    assert [(layer.width, layer.window) for layer in ModelShape.of(gemma).layers] == [(128, 16), (256, None)] * 2
    qwen = ModelShape.of(load_causal_lm(str(shaped_model("qwen3_5")), "float32"))
    assert len(qwen.layers) == 1
