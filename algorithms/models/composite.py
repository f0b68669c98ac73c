"""Composite models: text with images or sound. Only the text model is trained, under the names of a plain one.

The Hub has `Gemma3ForConditionalGeneration` and its like, with towers for images beside the text model. Here learners,
engines, checkpoints and exports all have the text model alone, a class of its own in transformers and in vLLM
(`Gemma3ForCausalLM`). Only who reads the folder that a run starts from needs the map from its names.
"""

import copy
import re
from pathlib import Path
from typing import Any

from algorithms.config.errors import ConfigError, shown

# What a composite model's `model_type` says about the class of its text model.
TEXT_ARCHITECTURES = {
    "gemma3": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
}
# From names in a composite model's files to those of its text model, as transformers wrote them before and after 4.52.
RENAMES = {
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
# In the configuration of a text model: the class of the composite one that it was taken from.
TEXT_OF = "text_of"
_TEXT = ("model.language_model.", "language_model.", "lm_head.")


def is_composite(config: Any) -> bool:
    """Return whether a model's configuration holds that of a text model."""
    return config.get_text_config() is not config


def composite_name(config: Any) -> str:
    """Return the class that a composite model's folder names."""
    return str((config.architectures or [type(config).__name__])[0])


def text_config(config: Any, name: str = "") -> Any:
    """Return the configuration of the model that is trained: itself, or of a composite model's text model.

    Args:
        config: transformers' configuration of any causal language model.
        name: of the model, for the error.

    Raises:
        ConfigError: a composite model without a known map; one line.
    """
    if not is_composite(config):
        return config
    if config.model_type not in TEXT_ARCHITECTURES:
        raise ConfigError(
            f"rl_module.model: {shown(name or config.model_type)} is not supported: of composite models (text with "
            f"images or sound), here of the type {config.model_type}, only the text of "
            f"{', '.join(TEXT_ARCHITECTURES)} can be trained; fix: a model of one of these types, or one of text alone"
        )
    text = copy.deepcopy(config.get_text_config())
    text.architectures = [TEXT_ARCHITECTURES[config.model_type]]
    setattr(text, TEXT_OF, composite_name(config))
    # The composite model's word counts for its own class: the text model's part may say nothing, or its default.
    text.tie_word_embeddings = config.tie_word_embeddings
    return text


def layer_configs(config: Any) -> list[Any]:
    """Return each layer's own configuration: Gemma 4's differ, in their head size for one."""
    if getattr(config, "is_heterogeneous", False):
        return list(config.per_layer_config)
    return [config] * config.num_hidden_layers


def layer_kinds(config: Any) -> list[str]:
    """Return what each layer attends to, in transformers' words; without them a window is that of all layers."""
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    of_all = "sliding_attention" if windowed else "full_attention"
    return list(getattr(config, "layer_types", None) or [of_all] * config.num_hidden_layers)


def text_name(name: str) -> str | None:
    """Return the name in the text model of a composite model's weight; None if the weight is not part of it."""
    if not name.startswith(_TEXT):
        return None
    for pattern, replacement in RENAMES.items():
        name = re.sub(pattern, replacement, name)
    return name


def check_text_weights(folder: Path, name: str, model: Any) -> None:
    """Check that a composite model's files have every weight of its text, by their headers.

    Args:
        folder: with safetensors files.
        name: of the model, for the error.
        model: the text model, which may be empty.

    Raises:
        ConfigError: some are missing, or have other names; one line.
    """
    from safetensors import safe_open

    found: set[str | None] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as opened:
            found |= {text_name(weight) for weight in opened.keys()}  # noqa: SIM118  # not a dict
    if missing := sorted(weight for weight, _ in model.named_parameters() if weight not in found):
        raise ConfigError(
            f"rl_module.model: {shown(name)} lacks {len(missing)} weights of its text model, {missing[0]!r} for one; "
            "fix: copy the model again, or have transformers load and save it, which gives weights their usual names"
        )
