"""Let vLLM read a composite model's folder: only the text model, under the class and names of a plain one."""

import dataclasses
from collections.abc import Generator
from typing import Any

import torch
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from algorithms.models.composite import text_config, text_name

TEXT_FORMAT = "r3_text"


def only_text(config: Any) -> Any:
    """Return the configuration of the text model, as vLLM's `hf_overrides`, which is called with other ones too."""
    return text_config(config)


@register_model_loader(TEXT_FORMAT)
class TextLoader(DefaultModelLoader):
    """Reads safetensors files, leaves out weights that are not of the text, and renames the rest."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(dataclasses.replace(load_config, load_format="safetensors"))

    def get_all_weights(self, model_config: Any, model: Any) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Yield the text model's weights under its own names."""
        for name, tensor in super().get_all_weights(model_config, model):
            own = text_name(name)
            if own is not None:
                yield own, tensor
