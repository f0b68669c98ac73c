"""How many tokens the longest episodes of a configuration take, and whether the model has room for them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from algorithms.configuration.environments import EnvironmentFacts
from algorithms.configuration.errors import ConfigError, shown
from algorithms.models.names import ModelFacts, resolve_model

if TYPE_CHECKING:
    from algorithms.grpo.config import GRPOConfig


@dataclass(frozen=True)
class ContextUse:
    """Lengths in tokens.

    Args:
        prompt: the longest first prompt; 0 when there is none at hand to measure.
        plain: the longest episode of one turn.
        longest: the longest episode, with the further turns that the configuration allows.
    """

    prompt: int
    plain: int
    longest: int


def context_use(config: "GRPOConfig", environment: EnvironmentFacts) -> ContextUse:
    """Measure with the model's tokenizer.

    Raises:
        ConfigError: the tokenizer cannot be loaded, or its chat template cannot continue a conversation.
    """
    response = config.env_runners_settings.max_response_tokens
    reflection = getattr(config, "reflection_settings", None)
    turns = max(config.environment_settings.max_turns, 2 if config.evaluation_settings.reflection else 1)
    prompt, guidance = _measured(config, environment, several=turns > 1 or bool(reflection and reflection.enabled))
    longest = prompt + turns * response + (turns - 1) * guidance
    if reflection is not None and reflection.enabled:
        attempt = min(response, reflection.max_attempt_tokens or response)
        longest = max(longest, prompt + attempt + guidance + response)
    return ContextUse(prompt=prompt, plain=prompt + response, longest=longest)


def validate_context(config: "GRPOConfig", model: ModelFacts, use: ContextUse) -> None:
    """Check that a prompt and its response fit.

    Raises:
        ConfigError: they are longer than the model's context.
    """
    if model.context is None or use.plain <= model.context:
        return
    response, room = config.env_runners_settings.max_response_tokens, model.context - use.prompt
    fix = f"env_runners.max_response_tokens={room}" if room > 0 else "a model with a longer context"
    raise ConfigError(
        f"env_runners.max_response_tokens: {response} and prompts of up to {use.prompt} tokens are more than "
        f"the {model.context} tokens of {model.name}; fix: {fix}"
    )


def _measured(config: "GRPOConfig", environment: EnvironmentFacts, *, several: bool) -> tuple[int, int]:
    """Tokens of the longest prompt and of the turn that asks for a second attempt, 0 if there is none."""
    if not environment.longest_prompts:
        return 0, 0
    from algorithms.models.tokenizer import load_tokenizer
    from r3env import chat

    module = config.rl_module_settings
    try:
        tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
        prompts = [[{"role": "user", "content": text}] for text in environment.longest_prompts]
        guidance = len(chat.next_turn(tokenizer, [], environment.guidance)) if several else 0
        return max(len(chat.first_turn(tokenizer, prompt)) for prompt in prompts), guidance
    except Exception as error:  # a tokenizer and its template are files that somebody else wrote
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"rl_module.model: {shown(module.model)}: its tokenizer: {reason}") from error
