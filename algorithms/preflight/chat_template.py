"""Check that the chat template supports the configuration, and show the first prompt as the model sees it."""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithms.config.errors import ConfigError, close_match, shown
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import chat_format, load_tokenizer
from r3env import chat
from r3env.reasoning import response_text
from r3env.tools.calls import find_calls

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

_KWARGS = "rl_module.chat_template_kwargs"
# The trainer's own arguments: given twice, they would be an error in the middle of a run.
_TAKEN = frozenset({"messages", "add_generation_prompt", "continue_final_message"})
_SHOWN = 1200
RENDERING_S = 3  # of processor time; a real template takes a thousandth
RENDERING_BYTES = 1 << 30  # beside what this process has
_TOO_LARGE = 3  # exit code of a fork that found no more memory
_STALLED_S = 120.0
_LOOK_S = 0.005
_RESULT = "THERESULTSTANDSHERE"  # stands for what a tool returns while the template is rendered
_ANSWER = "\u00a7"  # and this for an answer; no call begins with it


def check_chat(config: "BaseConfig", tokenizer: Any) -> None:
    """Check that the template reads every variable that is set, and keeps the system turn.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    form = chat_format(config)
    _check_rendering(config, tokenizer, form)
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


def _check_rendering(config: "BaseConfig", tokenizer: Any, form: chat.ChatFormat) -> None:
    """Render first and later turns in a fork, which the system ends: a template is a program that may loop for ever.

    Raises:
        ConfigError: it takes too long.
    """
    if not getattr(tokenizer, "chat_template", None):
        return
    rendering = os.fork()
    if rendering == 0:
        code = 0
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _limit_memory()
            resource.setrlimit(resource.RLIMIT_CPU, (RENDERING_S, RENDERING_S + 1))  # the first is a SIGXCPU
            turns = [{"role": "user", "content": "Q"}]
            chat.first_turn(tokenizer, turns, form)
            chat.next_turns(tokenizer, [], turns, form)
        except MemoryError:
            code = _TOO_LARGE
        finally:  # another error is reported later, by whoever renders a prompt
            os._exit(code)
    if not _ends(rendering, _STALLED_S):
        fix = "fix: correct its chat_template.jinja, or name another model"
        raise ConfigError(
            f"rl_module.model: the chat template of {shown(config.rl_module_settings.model)} has not rendered a prompt "
            f"of one word with {RENDERING_S} s of computing and {RENDERING_BYTES >> 30} GiB; {fix}"
        )


def _limit_memory() -> None:
    """Let this process have `RENDERING_BYTES` more than now, where the system says how much it has."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + RENDERING_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _ends(process: int, limit_s: float) -> bool:
    """Return whether a fork ends within its limits; one that is stopped is killed at the wall clock's limit."""
    until = time.monotonic() + limit_s
    with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored the system reaps it
        while time.monotonic() < until:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                if os.WIFEXITED(status):
                    return os.WEXITSTATUS(status) != _TOO_LARGE
                return os.WTERMSIG(status) != signal.SIGXCPU
            time.sleep(_LOOK_S)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)  # waits: nothing outlives that signal
        return False
    return True


def check_tools(config: "BaseConfig", tokenizer: Any, form: chat.ChatFormat) -> None:
    """Check that the template shows the policy its tools, and their results.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if not form.tools:
        return
    name = str(form.tools[0]["function"]["name"])
    try:
        shown_tools = str(tokenizer.decode(chat.first_turn(tokenizer, [{"role": "user", "content": "Q"}], form)))
        turn = {"role": "tool", "name": name, "content": _RESULT}
        shown_result = str(tokenizer.decode(chat.next_turns(tokenizer, [], [turn], form)))
    except Exception as error:  # a template is a program that somebody else wrote
        problem = f"refuses tools ({next(iter(str(error).splitlines()), type(error).__name__)})"
    else:
        if name not in shown_tools:
            problem = "leaves out the tools"
        elif unread := _unread_call(tokenizer, form, name):
            problem = f"has calls written as {shown(unread)}, which are not read"
        elif _RESULT not in shown_result:
            problem = "leaves out the turns of tools"
        else:
            return
    model = shown(config.rl_module_settings.model)
    raise ConfigError(
        f"environment.options.tools: the chat template of {model} {problem}; fix: "
        "environment.options.show_tools=prompt, or a model whose template has them, such as Qwen/Qwen3-0.6B"
    )


def _unread_call(tokenizer: Any, form: "chat.ChatFormat", name: str) -> str:
    """Return a call as the template writes it if it is none for rollouts; "" if it is one, or the template has none."""
    given = {"tools": [dict(tool) for tool in form.tools], "tokenize": False, **form.template_kwargs}
    written = ""
    for arguments in ({"a": 1}, '{"a": 1}'):  # templates take one or the other
        call = {"type": "function", "id": "call00000", "function": {"name": name, "arguments": arguments}}
        says, calls = {"content": _ANSWER}, {"content": "", "tool_calls": [call]}
        pair = [[{"role": "user", "content": "Q"}, {"role": "assistant", **turn}] for turn in (says, calls)]
        try:
            answered, called = (tokenizer.apply_chat_template(turns, **given) for turns in pair)
        except Exception:  # a template is a program that somebody else wrote
            continue
        behind = len(os.path.commonprefix([answered[::-1], called[::-1]]))
        own = called[len(os.path.commonprefix([answered, called])) : len(called) - behind]
        text = response_text(tokenizer, tokenizer.encode(own, add_special_tokens=False)).strip()
        if any(call.name == name and not call.problem for call in find_calls(text)):
            return ""
        written = text if name in text else written
    return written


def _check_kwargs(config: "BaseConfig", tokenizer: Any) -> None:
    module = config.rl_module_settings
    if not module.chat_template_kwargs:
        return
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(f"{_KWARGS}: {shown(module.model)} has no chat template; fix: {_KWARGS}={{}}")
    known = _variables(tokenizer) - _TAKEN
    for key in module.chat_template_kwargs:
        if key not in known:
            match = close_match(key, sorted(known))
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


def prompt_lines(
    config: "BaseConfig", prompt: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the lines that show a first prompt, line breaks as they are; a long one is cut in the middle.

    Args:
        config: names the model, which is at hand.
        prompt: its turns; empty where no query was read.
        tools: what the policy may call.
    """
    if not prompt:
        return
    module = config.rl_module_settings
    tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
    form = replace(chat_format(config), tools=tools)
    tokens = chat.first_turn(tokenizer, prompt, form)
    yield from text_lines("first prompt", str(tokenizer.decode(tokens)))


def text_lines(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text, the first with a name; a long one is cut in the middle."""
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN // 2]}\n[...]\n{text[-_SHOWN // 2 :]}"
    for line in text.split("\n"):
        yield name, line
        name = ""
