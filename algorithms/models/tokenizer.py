"""The policy's tokenizer, and the tokens that end its turn; transformers is imported late, as in causal_lm.py."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from algorithms.config.errors import ConfigError, shown
from algorithms.models.causal_lm import read_config
from algorithms.models.names import resolve_model
from r3env import chat

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig
    from algorithms.config.machine import RLModuleSettings


def load_tokenizer(model: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a model folder or Hub id; raises OSError if there is none."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)


def chat_format(config: "BaseConfig") -> chat.ChatFormat:
    """Return how a configuration's conversations become tokens."""
    module = config.rl_module_settings
    return chat.ChatFormat(
        template_kwargs=module.chat_template_kwargs,
        system=config.environment_settings.system,
        rerender=module.earlier_turns == "rendered",
    )


def stop_token_ids(tokenizer: Any, model: str, revision: str | None = None) -> tuple[int, ...]:
    """Return every token that ends a response: the tokenizer's, the chat template's, and the generation config's.

    Raises:
        ConfigError: there is none: no response would ever end.
    """
    from transformers import GenerationConfig

    stops = {tokenizer.eos_token_id, chat.end_of_turn(tokenizer)}
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


@dataclass(frozen=True)
class ModelConfigs:
    """A model's configurations, read when a run starts: days later its folder may be gone or changed.

    Args:
        model: transformers' configuration of the model.
        generation: its generation config; None if it has none.
    """

    model: Any
    generation: Any | None

    @classmethod
    def read(cls, settings: "RLModuleSettings") -> Self:
        """Read them from the model's folder or Hub page; raises OSError if there is none at `rl_module.model`."""
        from transformers import GenerationConfig

        source = resolve_model(settings.model)
        model = read_config(source, settings.revision, settings.trust_remote_code)
        try:
            return cls(model, GenerationConfig.from_pretrained(source, revision=settings.revision or "main"))
        except OSError:
            return cls(model, None)

    def save(self, folder: Path) -> None:
        """Write them to a folder of float32 weights."""
        self.model.dtype = "float32"
        self.model.save_pretrained(folder)
        if self.generation is not None:
            # Its save_pretrained refuses what many models have, such as a temperature without do_sample.
            self.generation.to_json_file(folder / "generation_config.json", keys_to_pop=["compile_config"])
