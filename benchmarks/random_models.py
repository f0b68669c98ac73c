"""Random weights in real shapes, with the embedded model's tokenizer: nothing comes from the Hub."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# The shape of Qwen2.5-1.5B and of what was distilled into it.
QWEN2_1_5B: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
    }
)
_TINY: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 1024,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
)
SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType({"tiny": _TINY, "1.5b": QWEN2_1_5B})


def random_model(size: str, device: str) -> Any:
    """Return a Qwen2 with random float32 weights; the same ones each time on the same kind of device.

    Args:
        size: `tiny` or `1.5b`.
        device: where the weights are made.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return Qwen2ForCausalLM(Qwen2Config(**SHAPES[size]))


def save_random_model(folder: str, size: str, device: str) -> str:
    """Save a random model in bfloat16, unless the folder has one; returns the folder."""
    import torch
    from transformers import AutoTokenizer

    from algorithms.models.names import resolve_model

    if not os.path.exists(os.path.join(folder, "tokenizer_config.json")):  # the last file that is written
        random_model(size, device).to(torch.bfloat16).save_pretrained(folder)
        # Its ids are the first ones of the vocabulary.
        AutoTokenizer.from_pretrained(resolve_model("embedded:tiny")).save_pretrained(folder)
    return folder
