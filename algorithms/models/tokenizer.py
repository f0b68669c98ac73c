"""The policy's tokenizer, and the tokens that end its turn."""

from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from algorithms.configuration.errors import ConfigError, shown


def load_tokenizer(model: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a model folder or Hub id; raises OSError when there is none."""
    return AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)


def stop_token_ids(tokenizer: Any, model: str, revision: str | None = None) -> tuple[int, ...]:
    """Every token that ends a response: the tokenizer's, and those that the model's generation config adds.

    Raises:
        ConfigError: there is none, so that no response would ever end.
    """
    stops = {tokenizer.eos_token_id}
    try:
        extra = GenerationConfig.from_pretrained(model, revision=revision or "main").eos_token_id
    except OSError:  # a model without a generation config has nothing to add
        extra = None
    stops.update(extra if isinstance(extra, list) else [extra])
    known = tuple(sorted(token for token in stops if token is not None))
    if not known:
        raise ConfigError(
            f"rl_module.model: {shown(model)}: neither its tokenizer nor its generation config names a token that ends "
            "a response; fix: set the tokenizer's eos_token to the one that ends a turn, and save it there again"
        )
    return known
