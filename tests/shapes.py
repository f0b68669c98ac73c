"""Small random models in the shapes of real families, with traits that the embedded model lacks.

Each folder is what a Hub repository has: a configuration, safetensors, a byte-pair tokenizer of its own with a chat
template in the family's style, and a generation config. All have more embeddings than the tokenizer has tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from r3env.data.loading import load_queries

VOCABULARY = 2048
CONTEXT = 512
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the least that vLLM's attention takes on a CPU
    "max_position_embeddings": CONTEXT,
    # Far from uniform: an error in a layer has to show in the log-probs.
    "initializer_range": 0.12,
}
_WINDOWED = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "query_pre_attn_scalar": 32,
}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2}

_CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_TURNS = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Style:
    """A family's chat: `end` closes a turn, `eos` a text; both end a response."""

    template: str
    bos: str | None
    eos: str
    end: str
    marks: tuple[str, ...]


QWEN = Style(_CHATML, None, "<|im_end|>", "<|im_end|>", ("<|endoftext|>", "<|im_start|>"))
LLAMA = Style(_HEADERS, "<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>"))
GEMMA = Style(_TURNS, "<bos>", "<eos>", "<end_of_turn>", ("<pad>", "<start_of_turn>"))


@dataclass(frozen=True)
class Shape:
    """A family's configuration, small.

    Args:
        style: of its chat.
        config: transformers' class of its configuration.
        settings: of the (text) model.
        parts: of a composite model besides its text.
    """

    style: Style
    config: str
    settings: Mapping[str, Any]
    parts: Mapping[str, Any] = field(default_factory=dict)

    def make_config(self, tokens: Mapping[str, Any]) -> Any:
        """The configuration, with a tokenizer's special tokens."""
        kind: Callable[..., Any] = getattr(transformers, self.config)
        text = {**self.settings, **tokens}
        return kind(text_config=text, **self.parts) if self.parts else kind(**text)


SHAPES: dict[str, Shape] = {
    "qwen3": Shape(QWEN, "Qwen3Config", {**_TEXT, "tie_word_embeddings": True}),
    "qwen2": Shape(
        QWEN,
        "Qwen2Config",
        {**{name: value for name, value in _TEXT.items() if name != "head_dim"}, "num_attention_heads": 2},
    ),
    "llama": Shape(
        LLAMA,
        "LlamaConfig",
        {
            **_TEXT,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "gemma2": Shape(
        GEMMA,
        "Gemma2Config",
        # Caps so low that they bite.
        {**_TEXT, **_WINDOWED, "attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0},
    ),
    "gemma3_text": Shape(GEMMA, "Gemma3TextConfig", {**_TEXT, **_WINDOWED}),
    "gemma3": Shape(
        GEMMA,
        "Gemma3Config",
        {**_TEXT, **_WINDOWED},
        {"vision_config": {**_TOWER, "image_size": 28, "patch_size": 14}, "mm_tokens_per_image": 4},
    ),
    "gemma4": Shape(
        GEMMA,
        "Gemma4Config",
        {
            **_TEXT,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 16,
            "global_head_dim": 64,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 16,
            "final_logit_softcapping": 2.0,
        },
        {"vision_config": {**_TOWER, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16}},
    ),
    "qwen3_5": Shape(
        QWEN,
        "Qwen3_5Config",
        {
            **_TEXT,
            "num_hidden_layers": 4,  # three linear ones, then one with attention
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
        },
        {
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": 64,
                "num_position_embeddings": 16,
                "patch_size": 14,
            },
            "tie_word_embeddings": True,  # and the text model's part says nothing
        },
    ),
    # Models that scale the product of their heads.
    "granite": Shape(LLAMA, "GraniteConfig", {**_TEXT, "logits_scaling": 4.0, "residual_multiplier": 0.5}),
    # Wider than what is sampled: vLLM 0.32 counts this window one token longer than transformers.
    "cohere2": Shape(
        LLAMA,
        "Cohere2Config",
        {**_TEXT, "layer_types": _WINDOWED["layer_types"], "sliding_window": 96, "logit_scale": 0.25},
    ),
    "falcon_h1": Shape(
        LLAMA,
        "FalconH1Config",
        {
            **_TEXT,
            "lm_head_multiplier": 0.25,
            "mamba_d_ssm": 128,
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_n_groups": 1,
            "mamba_d_state": 16,
            "mamba_chunk_size": 16,
        },
    ),
}
# Architectures whose sequences cannot stand in one row: capped scores, recurrent states.
PADDED = ("gemma2", "qwen3_5", "falcon_h1")
# Those that are trained, exported and loaded by commands, with vLLM; on a CPU it has linear attention in bfloat16 only.
BY_COMMANDS = ("qwen3", "llama", "gemma3")
NOT_IN_FLOAT32 = ("qwen3_5", "falcon_h1")
COMPOSITE = tuple(name for name, shape in SHAPES.items() if shape.parts)


def make_model(folder: Path, name: str, *, seed: int = 0) -> Path:
    """Write the model of a shape; returns the folder."""
    shape = SHAPES[name]
    tokenizer = make_tokenizer(shape.style)
    ends = sorted({tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(shape.style.end)})
    tokens = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": ends[0] if len(ends) == 1 else ends}
    tokens["pad_token_id"] = tokenizer.pad_token_id
    config = shape.make_config(tokens)
    torch.manual_seed(seed)
    auto = transformers.AutoModelForImageTextToText if shape.parts else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    _randomize(model)
    model.generation_config = GenerationConfig(**tokens, do_sample=True, temperature=0.6)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def enlarge(small: Path, folder: Path, **sizes: int) -> Path:
    """Write a random model of the same family with other sizes, and the same tokenizer; returns the folder."""
    config = transformers.AutoConfig.from_pretrained(small)
    for name, size in sizes.items():
        setattr(config, name, size)
    if layers := getattr(config, "layer_types", None):
        config.layer_types = (list(layers) * config.num_hidden_layers)[: config.num_hidden_layers]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig.from_pretrained(small)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(small).save_pretrained(folder)
    return folder


def _randomize(model: Any) -> None:
    """Give biases and norms values of their own too: at 0 and 1 a forgotten one would not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))


def make_tokenizer(style: Style) -> PreTrainedTokenizerFast:
    """A byte-level byte-pair tokenizer of a few hundred tokens, trained on the embedded problems."""
    marks = dict.fromkeys([*style.marks, *filter(None, [style.bos]), style.eos, style.end])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320 + len(marks),
        special_tokens=list(marks),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [query.problem for query in load_queries("embedded:train")]
    tokenizer.train_from_iterator([*texts, style.template, "system user assistant model Be brief."], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=style.bos,
        eos_token=style.eos,
        pad_token=style.marks[0],
        model_max_length=CONTEXT,
    )
    fast.chat_template = style.template
    return fast
