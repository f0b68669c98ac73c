"""A token that no response contains, to put after a response as a question to the policy. No transformers."""

import re
from typing import Any

from algorithms.config.errors import ConfigError

_RESERVED = re.compile(r"reserved|unused|vision_start|extra_\d|placeholder", re.IGNORECASE)
_NO_TEXT = ("<0xFF>", "ÿ")  # the byte 0xFF, which UTF-8 never has, as tokenizers spell it


def unused_token(tokenizer: Any, vocabulary: int, wanted: "int | str | None", setting: str) -> int:
    """Return the id of a token that responses never contain.

    If `wanted` is None, take the first available: a reserved or unused special token (for text, `<|vision_start|>` is
    one), a row of the output head that the tokenizer has no token for, or the byte 0xFF.

    Args:
        tokenizer: the policy's.
        vocabulary: rows of the model's output head.
        wanted: an id, or a token's text; None: choose one.
        setting: the setting that names it, for messages.

    Raises:
        ConfigError: the model has no such token, or there is none to choose.
    """
    if wanted is None:
        return _choose(tokenizer, vocabulary, setting)
    token = _id_of(tokenizer, wanted) if isinstance(wanted, str) else wanted
    if token is None or not 0 <= token < vocabulary:
        raise ConfigError(
            f"{setting}: the model has no token {wanted!r}; fix: a number below {vocabulary}, a token's text, or "
            f"{setting}=null for an automatic choice"
        )
    if token in {tokenizer.eos_token_id, tokenizer.pad_token_id}:
        raise ConfigError(f"{setting}: {wanted!r} ends or pads responses; fix: a token that no response contains")
    return int(token)


def _choose(tokenizer: Any, vocabulary: int, setting: str) -> int:
    known = tokenizer.get_added_vocab()
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id}
    for text, token in sorted(known.items(), key=lambda item: item[1]):
        if _RESERVED.search(text) and token < vocabulary and token not in ends:
            return int(token)
    first = max(tokenizer.get_vocab().values()) + 1
    if first < vocabulary:
        return first
    for text in _NO_TEXT:
        token = _id_of(tokenizer, text)
        if token is not None and token not in tokenizer.encode(text, add_special_tokens=False):
            return token
    raise ConfigError(
        f"{setting}: the vocabulary has no reserved token, and no byte that text never has; fix: {setting}=NUMBER, the "
        "id of a token that responses never contain"
    )


def _id_of(tokenizer: Any, text: str) -> int | None:
    token = tokenizer.get_vocab().get(text)
    return None if token is None else int(token)
