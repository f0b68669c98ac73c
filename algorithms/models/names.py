"""Resolve a model's name, check that it can be loaded, and read its size, without loading it."""

import os
import re
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import r3env
from algorithms.config.errors import ConfigError, ServiceError, close_match, shown
from r3env.streams import NO_ROOM

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig
    from algorithms.config.machine import RLModuleSettings

EMBEDDED = ("tiny", "teacher")
_WHERE = "rl_module.model"
_HUB_ID = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "spiece.model",
)
_ADAPTER = "adapter_config.json"
_FETCH = "fetch it where the Hub can be reached, into this machine's cache (`hf download ID`)"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_HUB_TIMEOUT_S = 5.0
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelFacts:
    """The size of a causal language model, from its configuration alone.

    Args:
        parameters: counted once where they are shared (tied embeddings).
        context: positions that the model supports; None if its configuration does not say.
        vocabulary: tokens that it has an embedding for; None if unknown.
        short_context: tokens from which on a batch turns all of its positions otherwise (longrope); None: none do.
        text_of: the composite model whose text model this is; None for a model of text alone.
        head: weights of the output head; 0 if unknown.
        kept: of each layer, the numbers that it keeps of a token and the most tokens that it keeps them of (None: all);
            empty: of every layer keys and values of all tokens.
        linear: of all linear layers but the head, by the end of their names: inputs and outputs, and weights, summed.
    """

    name: str
    architecture: str
    parameters: int
    layers: int
    kv_heads: int
    head_size: int
    context: int | None
    vocabulary: int | None = None
    text_of: str | None = None
    linear: tuple[tuple[str, int, int], ...] = field(default=(), compare=False)
    short_context: int | None = None
    head: int = field(default=0, compare=False)
    kept: tuple[tuple[int, int | None], ...] = field(default=(), compare=False)

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of one copy of the weights."""
        return self.parameters * BYTES[dtype]

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Return the parameters of a low-rank adapter; `targets` are ends of layers' names, none: all."""
        return rank * sum(size for size, _ in self._adapted(targets))

    def weights_under_adapter(self, targets: Sequence[str]) -> int:
        """Return the weights of the layers that get an adapter."""
        return sum(weights for _, weights in self._adapted(targets))

    def _adapted(self, targets: Sequence[str]) -> Iterator[tuple[int, int]]:
        ends = {target.rpartition(".")[2] for target in targets}
        return ((size, weights) for end, size, weights in self.linear if not ends or end in ends)

    def cache_bytes(self, tokens: int, dtype: str) -> int:
        """Return the bytes of keys and values of this many tokens, if all layers attend to everything."""
        return 2 * self.layers * self.kv_heads * self.head_size * tokens * BYTES[dtype]

    def least_cache_bytes(self, tokens: int, dtype: str) -> int:
        """Return the bytes of what layers have to keep of this many tokens, each of its window alone."""
        kept = sum(size * (tokens if window is None else min(tokens, window)) for size, window in self.kept)
        return kept * BYTES[dtype] if self.kept else self.cache_bytes(tokens, dtype)


@contextmanager
def errors_named(setting: str) -> Iterator[None]:
    """Make errors about a model name another setting than the policy's."""
    try:
        yield
    except ConfigError as error:
        line = str(error).replace("rl_module.model", setting).replace("rl_module.revision", f"{setting}_revision")
        raise ConfigError(line) from error


def resolve_model(name: str) -> str:
    """Return the folder or Hub id of a model name; `embedded:NAME` is a folder of this package.

    Raises:
        ConfigError: there is no embedded model of that name.
    """
    kind, colon, embedded = name.partition(":")
    if kind != "embedded" or not colon:
        return os.path.expanduser(name)
    if embedded not in EMBEDDED:
        known = [f"embedded:{model}" for model in EMBEDDED]
        raise ConfigError(
            f"{_WHERE}: {shown(name)} is not embedded; did you mean {close_match(name, known) or known[0]}?"
        )
    return str(Path(r3env.__file__).parent / "assets" / embedded)


def validate_model(config: "BaseConfig", *, unreachable_ok: bool = False) -> ModelFacts | None:
    """Check that the configured model exists, is complete and is a causal language model.

    Returns:
        The model's size; None if it could not be reached, which is an error unless `unreachable_ok`.

    Raises:
        ConfigError: one line that names `rl_module.model`.
    """
    return check_model(config.rl_module_settings, unreachable_ok=unreachable_ok)


def check_model(settings: "RLModuleSettings", *, unreachable_ok: bool = False) -> ModelFacts | None:
    """Check a model by its settings, see `validate_model`."""
    path = resolve_model(settings.model)
    if os.path.isdir(path):
        _check_folder(Path(path), settings.model)
    elif settings.model.startswith("embedded:"):
        what = f"{shown(settings.model)} is missing from this installation"
        raise ConfigError(f"{_WHERE}: {what}; fix: install the package again")
    elif not _HUB_ID.fullmatch(path) or os.path.exists(path):
        raise ConfigError(
            f"{_WHERE}: {shown(settings.model)} is neither a folder nor a Hub id; {_nearest_folder(path)}"
        )
    elif not _is_on_hub(path, settings.revision):
        if unreachable_ok and not _is_like_a_folder(Path(path)):
            return None
        raise ServiceError(
            f"{_WHERE}: {shown(settings.model)} is not in the local cache and the Hub cannot be reached; "
            f"{_nearest_folder(path)}"
        )
    return model_facts(settings.model, path, settings.revision, settings.trust_remote_code)


def _check_folder(folder: Path, name: str) -> None:
    if not (folder / "config.json").is_file():
        fix = "name a folder in Hugging Face's format"
        if models := sorted([*folder.glob("checkpoints/step_*/model"), *folder.glob("model")]):
            fix = f"name the model of its checkpoint, {models[-1]}"
        elif (folder / _ADAPTER).is_file():
            fix = f"run.start_from={folder}, and the model that the adapter goes beside here"
        raise ConfigError(f"{_WHERE}: {shown(name)} has no config.json; fix: {fix}")
    _refuse_adapter(folder, name)
    weights = list(folder.glob("*.safetensors"))
    if not weights and (pickled := sorted(file for kind in _PICKLED for file in folder.glob(kind))):
        raise ConfigError(
            f"{_WHERE}: {shown(name)} has only pickled weights ({pickled[0].name}), which may run code when they are "
            "loaded; fix: if you trust them, load the model with transformers and save it again as safetensors"
        )
    if not weights:
        raise ConfigError(f"{_WHERE}: {shown(name)} has no weights (*.safetensors); fix: save the model there again")
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise ConfigError(f"{_WHERE}: {shown(name)} has no tokenizer; fix: save the tokenizer there too")
    from safetensors import SafetensorError, safe_open

    for file in weights:
        try:
            # Reads the header and compares it with the file's length, so a torn copy shows.
            with safe_open(file, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{_WHERE}: {file} is damaged ({error}); fix: copy it again") from None


def _refuse_adapter(folder: Path, name: str) -> None:
    # With peft installed transformers loads it on top of the model, pickled or not, whatever use_safetensors says.
    if (folder / _ADAPTER).exists():
        raise ConfigError(
            f"{_WHERE}: {shown(name)} comes with an adapter ({_ADAPTER}), which is not loaded; fix: merge it first "
            "(peft's merge_and_unload, then save_pretrained), or name the model without it"
        )


def _is_on_hub(repo: str, revision: str | None) -> bool:
    """Return whether the model's configuration is cached or can be fetched; False if the Hub cannot be reached."""
    import huggingface_hub
    from huggingface_hub import errors

    if isinstance(huggingface_hub.try_to_load_from_cache(repo, "config.json", revision=revision), str):
        return True
    if not _hub_answers():
        return False
    try:
        huggingface_hub.hf_hub_download(repo, "config.json", revision=revision)
    except errors.GatedRepoError:
        reason = "is gated; fix: request access on its page, then log in with `hf auth login`"
    except errors.RepositoryNotFoundError:
        reason = "is not on the Hub, or private; fix: check the spelling, or log in with `hf auth login`"
    except errors.RevisionNotFoundError:
        reason = f"has no revision {revision}; fix: rl_module.revision=null"
    except errors.LocalEntryNotFoundError:
        return False
    except errors.EntryNotFoundError:
        reason = "has no config.json; fix: name a model in Hugging Face's format"
    except Exception as error:  # what the Hub's library raises changes with its version
        reason = f"cannot be fetched ({str(error).partition(chr(10))[0]})"
    else:
        return True
    raise ConfigError(f"{_WHERE}: {shown(repo)} {reason}")


def _hub_answers() -> bool:
    """Return whether the Hub can be reached at all. Check first: downloads retry for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_HUB_TIMEOUT_S).close()
    except HTTPError:
        return True
    except URLError as error:
        return isinstance(error.reason, ssl.SSLError)
    except OSError:
        return False
    return True


def fetch_model(settings: "RLModuleSettings") -> None:
    """Download a Hub model once, with progress bars, before engines and learners load it; a folder needs no download.

    Raises:
        ConfigError: the model cannot be fetched, has no weights or comes with an adapter.
    """
    folder = Path(resolve_model(settings.model))
    is_on_hub = not folder.is_dir()
    if is_on_hub:
        folder = _snapshot(settings.model, settings.revision)
    _refuse_adapter(folder, settings.model)
    if is_on_hub and not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{_WHERE}: {shown(settings.model)} has no weights (*.safetensors) in {folder}; fix: {_FETCH}, or name a "
            "model or rl_module.revision that has them; pickled ones are not loaded"
        )


def _snapshot(repo: str, revision: str | None) -> Path:
    import huggingface_hub

    wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]
    try:
        return Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=wanted))
    except Exception as error:  # what the Hub's library raises changes with its version
        if getattr(error, "errno", None) in NO_ROOM:  # reported elsewhere, as a full disk
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"{_WHERE}: {shown(repo)} cannot be fetched ({reason}); fix: {_FETCH}") from error


def context_length(settings: "RLModuleSettings") -> int | None:
    """Return the model's context length in tokens; None if its configuration does not say."""
    from algorithms.models.causal_lm import read_config

    config = read_config(resolve_model(settings.model), settings.revision, settings.trust_remote_code)
    return getattr(config, "max_position_embeddings", None)


def _short_context(config: Any) -> int | None:
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None


def model_facts(name: str, path: str, revision: str | None = None, trust_remote_code: bool = False) -> ModelFacts:
    """Return the size of the model in a folder or on the Hub; raises ConfigError if it is no causal language model."""
    from transformers import AutoConfig

    from algorithms.models.causal_lm import empty_causal_lm
    from algorithms.models.composite import (
        check_text_weights,
        composite_name,
        is_composite,
        layer_configs,
        layer_kinds,
        text_config,
    )

    try:
        config: Any = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code)
        text = text_config(config, name)
        model = empty_causal_lm(text, trust_remote_code)
    except ConfigError:
        raise
    except Exception as error:  # anything can be wrong in a file that somebody else wrote
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ConfigError(f"{_WHERE}: {shown(name)} is not a causal language model that loads: {reason}") from error
    if is_composite(config) and os.path.isdir(path):
        check_text_weights(Path(path), name, model)
    # The largest, where layers differ.
    layers = layer_configs(text)
    layer = max(layers, key=lambda one: _kv_heads(one) * _head_size(one))
    return ModelFacts(
        name=name,
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=text.num_hidden_layers,
        kv_heads=_kv_heads(layer),
        head_size=_head_size(layer),
        context=getattr(text, "max_position_embeddings", None),
        vocabulary=_embeddings(model),
        text_of=composite_name(config) if is_composite(config) else None,
        linear=_linear(model),
        short_context=_short_context(text),
        head=0 if (head := _head(model)) is None else head.weight.numel(),
        kept=tuple(_kept(text, layer_kinds(text), layers)),
    )


def _kept(text: Any, kinds: Sequence[str], layers: Sequence[Any]) -> Iterator[tuple[int, int | None]]:
    """Yield what each layer keeps of a token and of how many; a recurrent one keeps nothing that grows."""
    windows = {
        "sliding_attention": getattr(text, "sliding_window", None),
        "chunked_attention": getattr(text, "attention_chunk_size", None),
    }
    for kind, layer in zip(kinds, layers, strict=True):
        compressed = getattr(layer, "kv_lora_rank", None)  # of multi-head latent attention
        size = compressed + layer.qk_rope_head_dim if compressed else 2 * _kv_heads(layer) * _head_size(layer)
        yield (size, windows.get(kind)) if "attention" in kind and kind != "linear_attention" else (0, None)


def _linear(model: Any) -> tuple[tuple[str, int, int], ...]:
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    sizes, weights = Counter[str](), Counter[str]()
    head = _head(model)
    for name, module in model.named_modules():
        if isinstance(module, Linear | Conv1D) and module is not head:
            end = name.rpartition(".")[2]
            sizes[end] += sum(module.weight.shape)
            weights[end] += module.weight.numel()
    return tuple((end, size, weights[end]) for end, size in sizes.items())


def _kv_heads(layer: Any) -> int:
    if getattr(layer, "multi_query", False) and not getattr(layer, "new_decoder_architecture", False):
        return 1
    named = getattr(layer, "num_key_value_heads", None) or getattr(layer, "num_kv_heads", None)
    return int(named or layer.num_attention_heads)


def _head_size(layer: Any) -> int:
    return int(getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads)


def _embeddings(model: Any) -> int | None:
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):  # a model with code of its own
        return None


def _head(model: Any) -> Any:
    try:
        return model.get_output_embeddings()
    except (AttributeError, NotImplementedError):  # a model with code of its own
        return None


def _is_like_a_folder(path: Path) -> bool:
    """Return whether what may be a Hub id is rather a mistyped folder: its parent exists, or nearly its name does."""
    siblings = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    return (path.parent.is_dir() and path.parent != Path()) or close_match(path.name, siblings) is not None


def _nearest_folder(path: str) -> str:
    return next(_spellings(Path(path)), "fix: name a folder with a model, or a Hub id such as Qwen/Qwen3-0.6B")


def _spellings(path: Path) -> Iterator[str]:
    if not path.parent.is_dir():
        yield f"there is no folder {path.parent}"
    elif match := close_match(path.name, (entry.name for entry in path.parent.iterdir() if entry.is_dir())):
        yield f"did you mean {path.parent / match}?"
    elif match := close_match(str(path), [f"embedded:{model}" for model in EMBEDDED]):
        yield f"did you mean {match}?"
