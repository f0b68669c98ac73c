"""The chat templates of Qwen2.5, Qwen3 and Llama 3.1 as they are published, on a tokenizer that is made on the spot."""

import importlib.util
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from tests.chat_families import make_tokenizer

NAMES = ("qwen2_5", "qwen3", "llama3_1")
ENDS = {"qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "llama3_1": "<|eot_id|>"}
CALLS = {
    "qwen2_5": '<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}\n</tool_call>',
    "qwen3": '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}\n</tool_call>',
    "llama3_1": '{"name": "multiply", "parameters": {"a": 3, "b": 4}}',
}


def published(name: str) -> Any:
    """A tokenizer with the template of a family, which TRL has a copy of, and with the family's marks of calls."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.submodule_search_locations
    template = Path(spec.submodule_search_locations[0], "chat_templates", f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer = make_tokenizer(template)
    if name.startswith("qwen"):
        marks = ["<tool_call>", "</tool_call>"]
        marks += ["<tool_response>", "</tool_response>"] if name == "qwen3" else []
        tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    else:
        tokenizer.add_special_tokens({"extra_special_tokens": ["<|eom_id|>", "<|python_tag|>"]})
    return tokenizer
