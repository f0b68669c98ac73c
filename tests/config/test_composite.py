"""Composite models: the text alone is trained; what has no map of names is refused before anything is loaded."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlavaConfig, LlavaForConditionalGeneration

from algorithms.config.sections import RunSettings
from algorithms.export import main as export
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.learner.weights import full_weights
from algorithms.models.causal_lm import load_causal_lm
from algorithms.models.composite import TEXT_ARCHITECTURES, text_name
from algorithms.models.names import validate_model
from algorithms.models.tokenizer import ModelConfigs, load_tokenizer
from algorithms.preflight.check import check
from algorithms.train.manifest import write_manifest
from algorithms.train.tensor_files import write_tensors
from tests.shapes import COMPOSITE, CONTEXT, VOCABULARY


def config(model: Path) -> GRPOConfig:
    return GRPOConfig().rl_module(model=str(model))


@pytest.fixture
def copy(shaped_model, tmp_path) -> Path:
    return Path(shutil.copytree(shaped_model("gemma3"), tmp_path / "copy"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("vision_tower.encoder.layers.0.mlp.fc1.weight", None),
        ("model.vision_tower.patch_embedder.input_proj.weight", None),
        ("model.visual.blocks.0.attn.qkv.weight", None),
        ("multi_modal_projector.mm_input_projection_weight", None),
        ("model.embed_audio.embedding_projection.weight", None),
        ("mtp.layers.0.mlp.up_proj.weight", None),
    ],
)
def test_weights_of_the_text_get_its_own_names_and_others_none(name, text):
    assert text_name(name) == text


def test_every_type_that_is_supported_has_a_shape_in_the_tests():
    assert set(COMPOSITE) == set(TEXT_ARCHITECTURES)


@pytest.mark.parametrize("name", COMPOSITE)
def test_only_the_text_counts_and_the_check_says_so(shaped_model, name):
    folder = shaped_model(name)
    facts = validate_model(config(folder))
    stored = load_file(folder / "model.safetensors")
    assert facts.architecture == TEXT_ARCHITECTURES[name]
    text = {key: tensor for key, tensor in stored.items() if text_name(key) and not key.endswith("layer_scalar")}
    assert facts.parameters == sum(tensor.numel() for tensor in text.values())
    assert facts.parameters < sum(tensor.numel() for tensor in stored.values())
    assert (facts.context, facts.vocabulary) == (CONTEXT, VOCABULARY)
    (whole,) = json.loads((folder / "config.json").read_text())["architectures"]
    assert facts.text_of == whole
    lines = check(
        config(folder).environment(data="embedded:train").env_runners(max_response_tokens=64), RunSettings()
    ).lines
    at = next(place for place, line in enumerate(lines) if line.startswith("model "))
    assert lines[at + 1].strip() == f"the text part of {whole}: trained, saved and exported without its other parts"


def test_where_layers_differ_the_cache_is_that_of_the_largest(shaped_model):
    facts = validate_model(config(shaped_model("gemma4")))
    assert (facts.layers, facts.kv_heads, facts.head_size) == (4, 2, 64)


@pytest.mark.parametrize("name", COMPOSITE)
def test_the_export_is_the_text_alone_says_so_and_loads(shaped_model, tmp_path, capsys, name):
    model, checkpoint = shaped_model(name), tmp_path / "run" / "checkpoints" / "step_000001"
    (checkpoint / "model").mkdir(parents=True)
    lm = load_causal_lm(str(model), "float32")
    write_tensors(checkpoint / "model", "model", [{key: tensor.clone() for key, tensor in full_weights(lm)}])
    ModelConfigs.read(config(model).rl_module_settings).save(checkpoint / "model")
    load_tokenizer(str(model)).save_pretrained(checkpoint / "model")
    (checkpoint / "state.json").write_text("{}")
    write_manifest(checkpoint)
    assert export([str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    whole = validate_model(config(model)).text_of
    assert capsys.readouterr().out.endswith(f": the text model of {whole} alone, without its other parts\n")
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert all(torch.equal(tensor, lm.state_dict()[key]) for key, tensor in loaded.state_dict().items())
    facts = validate_model(config(tmp_path / "out"))
    assert (facts.architecture, facts.text_of) == (TEXT_ARCHITECTURES[name], None)


def test_a_composite_model_without_a_map_is_refused_in_one_line(tmp_path):
    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 1}
    tower = {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 14, **small}
    LlavaForConditionalGeneration(
        LlavaConfig(text_config={"model_type": "llama", "vocab_size": 64, **small}, vision_config=tower)
    ).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError) as raised:
        validate_model(config(tmp_path))
    assert str(raised.value) == (
        f"rl_module.model: '{tmp_path}' is not supported: of composite models (text with images or sound), here of the "
        "type llava, only the text of gemma3, gemma4, qwen3_5 can be trained; fix: a model of one of these types, or "
        "one of text alone"
    )


def test_weights_under_names_that_the_map_does_not_know_are_refused_before_they_are_loaded(copy):
    stored = load_file(copy / "model.safetensors")
    renamed = {name.replace("language_model.", "llm."): tensor for name, tensor in stored.items()}
    save_file(renamed, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"^rl_module\.model: .* lacks \d+ weights of its text model, 'model\."
    ) as raised:
        validate_model(config(copy))
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("torchvision", "line"),
    [
        (None, "env_runners.engine: vLLM needs torchvision for Qwen3_5ForCausalLM; fix: pip install torchvision"),
        (object(), "env_runners.dtype: on a CPU vLLM runs Qwen3_5ForCausalLM in bfloat16 only; fix: env_runners.dtype"),
    ],
)
def test_what_vllm_cannot_run_here_is_said_before_it_starts(shaped_model, monkeypatch, torchvision, line):
    real = importlib.util.find_spec
    found = {"torchvision": torchvision, "vllm": object()}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: found[name] if name in found else real(name, *rest)
    )
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    asked = config(shaped_model("qwen3_5")).environment(data="embedded:train")
    asked = asked.env_runners(engine="vllm", max_response_tokens=64, dtype="float32")
    with pytest.raises(ConfigError) as raised:
        check(asked, RunSettings())
    assert str(raised.value).startswith(line)
