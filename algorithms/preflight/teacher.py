"""Check that the teacher that learners load is a model, and uses the policy's tokens."""

from typing import TYPE_CHECKING

from algorithms.config.errors import ConfigError, shown
from algorithms.models.names import ModelFacts, check_model, errors_named, fetch_model, resolve_model
from algorithms.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig
    from algorithms.config.machine import RLModuleSettings


def validate_teacher(
    config: "BaseConfig", model: ModelFacts | None, *, unreachable_ok: bool = False
) -> ModelFacts | None:
    """Check the teacher of a configuration, and note its size in `config`; None if it has none, or it is out of reach.

    Args:
        config: the configuration.
        model: the policy's size; None where it could not be reached: then vocabularies are not compared.
        unreachable_ok: whether a Hub model may be neither cached nor reachable.

    Raises:
        ConfigError: one line that names the setting: it is no model, or its tokens are not the policy's.
    """
    settings = config.teacher_settings
    if settings is None:
        return None
    with errors_named(config.teacher_setting):
        teacher = check_model(settings, unreachable_ok=unreachable_ok)
    if teacher is None:
        return None
    config.measured_teacher(teacher.parameters)
    if model is not None:
        _check_vocabulary(config, settings, teacher)
    return teacher


def validate_teacher_context(config: "BaseConfig", teacher: ModelFacts | None, model: ModelFacts, longest: int) -> None:
    """Check that a teacher, if there is one, has a context for the longest sequences of the policy.

    Raises:
        ConfigError: it has not.
    """
    tokens = min(longest, model.context or longest)
    if teacher is not None and teacher.context is not None and teacher.context < tokens:
        raise ConfigError(
            f"{config.teacher_setting}: {shown(teacher.name)} has a context of {teacher.context} tokens, and prompt "
            f"and response have up to {tokens}; fix: a teacher with a longer context, or a smaller "
            "env_runners.max_response_tokens"
        )


def fetch_teacher(config: "BaseConfig") -> None:
    """Download a teacher from the Hub, if there is one; raises ConfigError where that fails."""
    if config.teacher_settings is not None:
        with errors_named(config.teacher_setting):
            fetch_model(config.teacher_settings)


def _check_vocabulary(config: "BaseConfig", settings: "RLModuleSettings", teacher: ModelFacts) -> None:
    module = config.rl_module_settings
    own, other = (
        load_tokenizer(resolve_model(each.model), each.revision, each.trust_remote_code).get_vocab()
        for each in (module, settings)
    )
    different = next((token for token, number in own.items() if other.get(token) != number), None)
    too_few = teacher.vocabulary is not None and max(own.values(), default=0) >= teacher.vocabulary
    if different is None and not too_few:
        return
    what = f"{shown(different)} is another token" if different is not None else "it has too few tokens"
    raise ConfigError(
        f"{config.teacher_setting}: {shown(settings.model)} does not use the tokens of {shown(module.model)} "
        f"({what}); fix: name a model with the same tokenizer"
    )
