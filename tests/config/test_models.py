"""A model is looked at before anything starts: where it is, whether it is whole, how large it is."""

import contextlib
import errno
import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import DeepseekV2Config, FalconConfig, Gemma3TextConfig, MistralConfig, Qwen3Config, Qwen3NextConfig

from algorithms.evaluation.config import BenchmarksConfig
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.models.names import ModelFacts, fetch_model, model_facts, resolve_model, validate_model
from algorithms.preflight.check import validate_vllm_model


def config(model: Path | str, **settings) -> GRPOConfig:
    return GRPOConfig().rl_module(model=str(model), **settings)


@pytest.fixture
def copy(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@contextlib.contextmanager
def hub(status: int, error_code: str) -> Iterator[str]:
    """A server that gives every request the Hub's way of saying no."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", error_code)
            self.send_header("X-Error-Message", "no")
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_names_resolve_to_folders_and_hub_ids():
    assert Path(resolve_model("embedded:tiny")).parts[-3:] == ("r3env", "assets", "tiny")
    assert resolve_model("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert resolve_model("~/m") == str(Path.home() / "m")
    with pytest.raises(ConfigError, match=r"^rl_module\.model: 'embedded:tin' .*did you mean embedded:tiny\?$"):
        resolve_model("embedded:tin")


def test_the_size_is_that_of_the_loaded_model(tiny_model):
    from transformers import AutoModelForCausalLM

    facts = validate_model(config(tiny_model))
    loaded = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert facts == ModelFacts(
        name=str(tiny_model),
        architecture="Qwen2ForCausalLM",
        parameters=sum(parameter.numel() for parameter in loaded.parameters()),
        layers=3,
        kv_heads=2,
        head_size=4,
        context=512,
        vocabulary=98,
    )
    assert facts.weight_bytes("bfloat16") == 2 * facts.parameters
    assert facts.cache_bytes(10, "float32") == 10 * 3 * (2 * 2 * 4) * 4


SIZES = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100}
KEPT = {
    "all keys and values": (Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16), 4 * 64 * 5000),
    "windows": (
        Gemma3TextConfig(
            **SIZES,
            num_key_value_heads=2,
            head_dim=16,
            sliding_window=100,
            layer_types=[*3 * ["sliding_attention"], "full_attention"],
        ),
        64 * (3 * 100 + 5000),
    ),
    "windows of all layers": (MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=100), 4 * 2 * 2 * 8 * 100),
    "recurrent layers": (
        Qwen3NextConfig(
            **SIZES,
            num_key_value_heads=2,
            head_dim=16,
            num_experts=2,
            layer_types=[*3 * ["linear_attention"], "full_attention"],
        ),
        64 * 5000,
    ),
    "latent attention": (
        DeepseekV2Config(**SIZES, num_key_value_heads=8, n_routed_experts=2, kv_lora_rank=24, qk_rope_head_dim=8),
        4 * (24 + 8) * 5000,
    ),
    "one key for all heads": (FalconConfig(**SIZES, multi_query=True), 4 * 2 * 8 * 5000),
}


@pytest.mark.parametrize("what", KEPT)
def test_the_least_that_a_cache_holds_is_what_layers_attend_to(what, tmp_path):
    of, kept = KEPT[what]
    of.save_pretrained(tmp_path)
    facts = model_facts(what, str(tmp_path))
    assert facts.least_cache_bytes(5000, "float16") == 2 * kept <= facts.cache_bytes(5000, "float16")


MISSING = {
    "config.json": "has no config.json; fix: name a folder in Hugging Face's format",
    "*.safetensors": "has no weights (*.safetensors); fix: save the model there again",
    "tokenizer*": "has no tokenizer; fix: save the tokenizer there too",
}


@pytest.mark.parametrize("pattern", MISSING)
def test_an_incomplete_folder_is_an_error(copy, pattern):
    for file in copy.glob(pattern):
        file.unlink()
    with pytest.raises(ConfigError) as raised:
        validate_model(config(copy))
    assert str(raised.value) == f"rl_module.model: '{copy}' {MISSING[pattern]}"


def test_a_run_or_an_adapter_named_as_the_model_is_told_from_one(tmp_path):
    run, adapter = tmp_path / "run", tmp_path / "adapter"
    checkpoint = run / "checkpoints/step_000002"
    (checkpoint / "model").mkdir(parents=True)
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    fixes = {
        run: f"fix: name the model of its checkpoint, {checkpoint / 'model'}",
        checkpoint: f"fix: name the model of its checkpoint, {checkpoint / 'model'}",
        adapter: f"fix: run.start_from={adapter}, and",
    }
    for folder, fix in fixes.items():
        with pytest.raises(ConfigError, match=re.escape(fix)):
            validate_model(config(folder))


@pytest.mark.parametrize("weights", ["adapter_model.bin", "adapter_model.safetensors"])
def test_a_folder_with_an_adapter_is_refused(copy, weights):
    """With peft installed transformers would load it on top of the model, by torch.load if need be."""
    (copy / "adapter_config.json").write_text("{}")
    (copy / weights).write_bytes(b"")
    with pytest.raises(ConfigError) as raised:
        validate_model(config(copy))
    assert str(raised.value) == (
        f"rl_module.model: '{copy}' comes with an adapter (adapter_config.json), which is not loaded; fix: merge it "
        "first (peft's merge_and_unload, then save_pretrained), or name the model without it"
    )


def test_a_model_of_the_hub_with_an_adapter_is_refused_once_it_is_there(copy, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(copy))
    settings = config("o/m").rl_module_settings
    fetch_model(settings)
    (copy / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^rl_module\.model: 'o/m' comes with an adapter .*fix: merge it first"):
        fetch_model(settings)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the Hub's."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return folder


def fetched(repo):
    """What is said of a model that is to be fetched."""
    with pytest.raises(ConfigError) as raised:
        fetch_model(config(repo).rl_module_settings)
    line = str(raised.value)
    assert "; fix: fetch it where the Hub can be reached, into this machine's cache (`hf download ID`)" in line
    return line


@pytest.mark.usefixtures("offline", "cache")
def test_a_model_of_the_hub_that_cannot_be_fetched_is_one_line():
    assert fetched("o/m").startswith("rl_module.model: 'o/m' cannot be fetched (")


@pytest.mark.usefixtures("offline")
def test_one_of_which_only_the_configuration_is_cached_is_one_line(cache, copy):
    snapshot = cache / "models--o--m" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    shutil.copy(copy / "config.json", snapshot)
    (cache / "models--o--m" / "refs").mkdir()
    (cache / "models--o--m" / "refs" / "main").write_text("0" * 40)
    assert fetched("o/m").startswith("rl_module.model: 'o/m' ")


def test_one_without_safetensors_is_one_line(copy, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(copy))
    (copy / "model.safetensors").unlink()
    line = fetched("o/m")
    assert line.startswith(f"rl_module.model: 'o/m' has no weights (*.safetensors) in {copy}; fix: ")


def test_a_disk_that_is_full_while_a_model_is_fetched_is_no_wrong_input(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(OSError, match="No space left"):
        fetch_model(config("o/m").rl_module_settings)


def test_torn_weights_are_an_error(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=rf"^rl_module\.model: {weights} is damaged .*fix: copy it again$"):
        validate_model(config(copy))


@pytest.mark.parametrize("content", ["{", '{"model_type": "t5"}', '{"model_type": "no such"}', "[]"])
def test_a_configuration_that_is_no_causal_lm_is_an_error(copy, content):
    (copy / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"^rl_module\.model: .*is not a causal language model that loads: .+"):
        validate_model(config(copy))


def test_a_missing_folder_names_the_nearest(copy):
    with pytest.raises(ConfigError) as raised:
        validate_model(config(copy.parent / "coppy"))
    assert str(raised.value) == (
        f"rl_module.model: '{copy.parent / 'coppy'}' is neither a folder nor a Hub id; did you mean {copy}?"
    )


@pytest.mark.parametrize("name", ["a b/c", "a/b/c", "/no/such", "embedded:other", "a\0b", "x\ny"])
def test_what_cannot_be_a_model_is_one_line(name):
    with pytest.raises(ConfigError) as raised:
        validate_model(config(name))
    assert str(raised.value).startswith("rl_module.model: ")


@pytest.mark.usefixtures("offline")
def test_an_unreachable_model_of_the_hub_is_an_error_unless_only_checked():
    with pytest.raises(ConfigError, match=r"^rl_module\.model: 'o/m' is not in the local cache and the Hub cannot"):
        validate_model(config("o/m"))
    assert validate_model(config("o/m"), unreachable_ok=True) is None


@pytest.mark.usefixtures("offline")
def test_a_mistyped_folder_that_could_be_a_model_of_the_hub_is_an_error_even_when_only_checked(copy, monkeypatch):
    monkeypatch.chdir(copy.parent.parent)
    near = f"{copy.parent.name}/{copy.name}"
    with pytest.raises(ConfigError, match=rf"^rl_module\.model: '{near}s' .*; did you mean {near}\?$"):
        validate_model(config(f"{near}s"), unreachable_ok=True)
    monkeypatch.chdir(copy.parent)
    with pytest.raises(ConfigError, match=rf"^rl_module\.model: '{copy.name}s' .*; did you mean {copy.name}\?$"):
        validate_model(config(f"{copy.name}s"), unreachable_ok=True)
    assert (
        validate_model(config("o/m"), unreachable_ok=True)
        is validate_model(config("gpt2"), unreachable_ok=True)
        is None
    )


@pytest.mark.parametrize(
    ("status", "code", "line"),
    [
        (401, "RepoNotFound", "is not on the Hub, or private"),
        (403, "GatedRepo", "is gated; fix: request access"),
        (404, "RevisionNotFound", "has no revision v2; fix: rl_module.revision=null"),
        (404, "EntryNotFound", "has no config.json"),
    ],
)
def test_what_the_hub_refuses_is_an_error_even_when_only_checked(monkeypatch, status, code, line):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with hub(status, code) as endpoint, pytest.raises(ConfigError) as raised:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        validate_model(config("o/m", revision="v2"), unreachable_ok=True)
    assert str(raised.value).startswith(f"rl_module.model: 'o/m' {line}")


def test_a_silent_hub_counts_as_unreachable(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert validate_model(config("o/m"), unreachable_ok=True) is None


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "MiniMaxM2ForCausalLM"])
def test_experts_that_vllm_does_not_take_are_refused(architecture):
    model = ModelFacts("moe", architecture, 1000, 1, 1, 4, None)
    asked = GRPOConfig().env_runners(engine="vllm")
    with pytest.raises(ConfigError, match=rf"^env_runners.engine: .* {architecture} .*engine=transformers, or an"):
        validate_vllm_model(asked, model)
    validate_vllm_model(asked.copy().rl_module(lora_rank=16).env_runners(lora_weights="adapter"), model)
    validate_vllm_model(BenchmarksConfig().apply({"env_runners": {"engine": "vllm"}}), model)
    validate_vllm_model(asked.env_runners(engine="transformers"), model)
