"""What vLLM refuses, or does silently, though the settings look right. Imports neither Ray nor vLLM."""

from typing import TYPE_CHECKING

from algorithms.configuration.context_window import ContextUse
from algorithms.configuration.errors import ConfigError

if TYPE_CHECKING:
    from algorithms.grpo.config import GRPOConfig

HOTTEST = 2.0


def check_temperatures(config: "GRPOConfig") -> None:
    """Check that vLLM samples as hot as it is asked to.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    runners, evaluation = config.env_runners_settings, config.evaluation_settings
    if runners.engine != "vllm":
        return
    asked = {"env_runners.temperature": runners.temperature, "evaluation.temperature": evaluation.temperature}
    for key, temperature in asked.items():
        if temperature is not None and temperature > HOTTEST:
            raise ConfigError(
                f"{key}: vLLM samples at temperatures up to {HOTTEST:g}, not {temperature:g}; fix: {key}={HOTTEST:g}"
            )


def validate_engine_context(config: "GRPOConfig", use: ContextUse) -> None:
    """Check that a prompt and its response fit into the context that vLLM is started with.

    Raises:
        ConfigError: they are longer than `max_model_len`, so that every long response would be cut off early.
    """
    runners = config.env_runners_settings
    length = runners.vllm.get("max_model_len")
    if runners.engine == "vllm" and isinstance(length, int) and 0 < length < use.plain:
        raise ConfigError(
            f"env_runners.vllm.max_model_len: {length} tokens do not hold prompts of up to {use.prompt} tokens and "
            f"responses of {runners.max_response_tokens}; fix: a max_model_len of {use.longest}"
        )
