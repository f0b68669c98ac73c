"""Whether the chat template takes what the configuration gives it, and the first prompt as the model sees it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from algorithms.config.errors import ConfigError, nearest, shown
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import chat_format, load_tokenizer
from r3env import chat

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

_KWARGS = "rl_module.chat_template_kwargs"
# The trainer's own arguments: given twice, they would be an error in the middle of a run.
_TAKEN = frozenset({"messages", "add_generation_prompt", "continue_final_message"})
_SHOWN = 1200


def check_chat(config: "BaseConfig", tokenizer: Any) -> None:
    """Check that the template reads every variable that is set, and keeps the system turn.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    form = chat_format(config)
    _check_kwargs(config, tokenizer)
    if form.system is None:
        return
    user = [{"role": "user", "content": "Q"}]
    model = shown(config.rl_module_settings.model)
    fix = "fix: environment.system=null, and the text in environment.instruction"
    chat.first_turn(tokenizer, user, chat.ChatFormat(form.template_kwargs))  # what fails here is not the system turn's
    try:
        prompt = chat.first_turn(tokenizer, user, form)
    except Exception as error:  # a template is a program that somebody else wrote
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"environment.system: the chat template of {model} refuses a system turn ({reason}); {fix}"
        ) from error
    if "".join(form.system.split()) not in "".join(str(tokenizer.decode(prompt)).split()):
        raise ConfigError(f"environment.system: the chat template of {model} leaves out the system turn; {fix}")


def _check_kwargs(config: "BaseConfig", tokenizer: Any) -> None:
    module = config.rl_module_settings
    if not module.chat_template_kwargs:
        return
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(f"{_KWARGS}: {shown(module.model)} has no chat template; fix: {_KWARGS}={{}}")
    known = _variables(tokenizer) - _TAKEN
    for key in module.chat_template_kwargs:
        if key not in known:
            match = nearest(key, sorted(known))
            fix = f"did you mean {match}?" if match else f"it reads: {', '.join(sorted(known)) or 'none'}"
            raise ConfigError(f"{_KWARGS}: the chat template of {shown(module.model)} has no variable {key}; {fix}")


def _variables(tokenizer: Any) -> set[str]:
    """Return the variables that the template reads and does not make itself in any case."""
    import jinja2.meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template = tokenizer.get_chat_template()
    # The environment with transformers' own tags.
    environment = _compile_jinja_template(template).environment
    return set(jinja2.meta.find_undeclared_variables(environment.parse(template))) - environment.globals.keys()


def prompt_lines(config: "BaseConfig", prompt: str) -> Iterator[tuple[str, str]]:
    """Yield the lines that show a first prompt, line breaks as they are; a long one is cut in the middle.

    Args:
        config: names the model, which is at hand.
        prompt: the first user turn; empty where no query was read.
    """
    if not prompt:
        return
    module = config.rl_module_settings
    tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
    tokens = chat.first_turn(tokenizer, [{"role": "user", "content": prompt}], chat_format(config))
    text = str(tokenizer.decode(tokens))
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN // 2]}\n[...]\n{text[-_SHOWN // 2 :]}"
    name = "first prompt"
    for line in text.split("\n"):
        yield name, line
        name = ""
