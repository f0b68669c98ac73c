"""Load a causal language model with transformers; of a composite model only its text model.

transformers takes seconds to import, which no help and no error in the settings waits for: each function does it.
"""

import logging
from typing import Any

import torch

from algorithms.config.errors import ConfigError, shown
from algorithms.models.composite import RENAMES, is_composite, text_config
from algorithms.models.products import use_onednn
from algorithms.utils.process import logger_level

_logger = logging.getLogger(__name__)


def read_config(model: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """Return the configuration of the model that is trained.

    Raises:
        OSError: there is none at `model`, a folder or Hub id.
        ConfigError: a composite model that is not supported.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    return text_config(config, model)


def empty_causal_lm(config: Any, trust_remote_code: bool = False) -> Any:
    """Return the model of a configuration without its weights, on the device `meta`."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def recomputes(lm: Any, asked: bool) -> bool:
    """Return whether a model recomputes activations in the backward pass: where that is asked, and it can."""
    if asked and not lm.supports_gradient_checkpointing:
        name = type(lm).__name__
        _logger.warning("rl_module.gradient_checkpointing: %s cannot recompute activations and keeps them", name)
    return bool(asked and lm.supports_gradient_checkpointing)


def load_causal_lm(model: str, dtype: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """Load a model, on the CPU.

    Args:
        model: folder or Hub id.
        dtype: of its weights, a torch dtype's name.
        revision: of a model on the Hub.
        trust_remote_code: whether to run code that comes with the model.

    Raises:
        OSError: there is none at `model`.
        ConfigError: a composite model that is not supported, or weights that are not in the files, which
            transformers would draw at random.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config: Any = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    text = text_config(config, model)
    options: dict[str, Any] = {"key_mapping": RENAMES} if is_composite(config) else {}
    if getattr(text, "attn_logit_softcapping", None):
        # transformers' `sdpa`, its default, silently computes without the cap: another model.
        options["attn_implementation"] = "eager"
    auto_class: Any = AutoModelForCausalLM  # typed without the report
    # Else it prints a table of every weight that is not of the text; one that is missing is an error.
    with logger_level("transformers.modeling_utils", logging.ERROR):
        lm, report = auto_class.from_pretrained(
            model,
            config=text,
            dtype=getattr(torch, dtype),
            revision=revision,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,  # the alternative is pickle
            output_loading_info=True,
            **options,
        )
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(
            f"rl_module.model: {shown(model)} lacks {len(missing)} of its weights, {missing[0]!r} for one; "
            "fix: copy or save the model again"
        )
    use_onednn(lm)
    return lm
