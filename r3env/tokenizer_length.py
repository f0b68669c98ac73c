"""Lengths of prompts in tokens, without `transformers`."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=8)
def token_counter(tokenizer: str) -> Callable[[str], int]:
    """Counts the tokens of a text, special tokens of a chat template not included.

    Args:
        tokenizer: A `tokenizer.json`, a folder that holds one, or a model's id on the Hub.

    Raises:
        ValueError: It cannot be loaded.
    """
    from tokenizers import Tokenizer  # imported here: few data sets are measured in tokens

    path = Path(tokenizer).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        loaded = Tokenizer.from_file(str(path)) if path.is_file() else Tokenizer.from_pretrained(tokenizer)
    except Exception as error:  # the library raises Exception itself
        reason = str(error).partition("\n")[0]
        raise ValueError(f"tokenizer: {tokenizer!r} cannot be loaded ({reason}); name a tokenizer.json") from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids)
