"""What `--check` knows of tools: that the chat template shows them, and how long they make the prompt."""

import shutil
from pathlib import Path

import pytest

import r3env
from algorithms.config.errors import ConfigError
from algorithms.config.sections import RunSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.chat_template import check_tools
from algorithms.preflight.check import check
from algorithms.preflight.environments import validate_environment
from examples.calculator import CHAT_TEMPLATE
from r3env.chat import ChatFormat
from tests.chat_families import FAMILIES, make_tokenizer

from .templates import NAMES, published
from .test_tool_env import HERE
from .test_tool_turns import MULTIPLY

FORM = ChatFormat(tools=[MULTIPLY])
RUN = RunSettings()


def config(model, **options):
    options = {"data": "embedded:train", "instruction": "", "tools": [f"{HERE}:multiply"], **options}
    chosen = GRPOConfig().environment("r3env/Tools-v0", env_config=options).rl_module(model=str(model))
    return chosen.env_runners(max_response_tokens=8)


@pytest.fixture
def calculator(tmp_path):
    """The embedded model with a template that shows tools."""
    folder = tmp_path / "model"
    shutil.copytree(Path(r3env.__file__).parent / "assets" / "tiny", folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def test_the_first_prompt_is_shown_with_the_tools(calculator):
    lines = check(config(calculator, max_turns=2), RUN).lines
    assert any("<|system|>multiply(a, b)<|end|><|user|>" in line for line in lines)


def test_the_tools_count_as_a_part_of_the_prompt(calculator):
    from algorithms.preflight.context_window import context_use

    def prompt(**options):
        chosen = config(calculator, **options)
        return context_use(chosen, validate_environment(chosen)).prompt

    assert prompt(tools=[f"{HERE}:multiply", f"{HERE}:speak"]) > prompt() > 20


def test_a_template_without_tools_is_refused():
    with pytest.raises(ConfigError) as error:
        check(config("embedded:tiny"), RUN)
    expected = "environment.options.tools: the chat template of 'embedded:tiny' leaves out the tools; fix: "
    expected += "environment.options.show_tools=prompt, or a model"
    assert str(error.value).startswith(expected)


@pytest.mark.parametrize("name", NAMES)
def test_published_templates_are_taken(name):
    check_tools(GRPOConfig(), published(name), FORM)


CALLS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>
{% endfor %}{{ tools }}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.parametrize(
    ("call", "is_read"),
    [
        ("<tool_call>{{ c.function | tojson }}</tool_call>", True),
        ('{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments }}}', True),
        ('[TOOL_CALLS] [{"name": "{{ c.function.name }}", "arguments": {}}]', False),
        ("<function={{ c.function.name }}></function>", False),
        ("", True),
        ("{{ raise_exception('no calls') }}", True),
    ],
)
def test_a_template_whose_calls_are_not_read_is_refused(call, is_read):
    tokenizer = make_tokenizer(CALLS.replace("CALL", call))
    if is_read:
        check_tools(GRPOConfig(), tokenizer, FORM)
        return
    with pytest.raises(ConfigError, match="has calls written as '.*multiply.*', which are not read; fix: .*=prompt"):
        check_tools(GRPOConfig(), tokenizer, FORM)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (None, "leaves out the tools"),
        (FAMILIES["llama3"].template, "leaves out the tools"),
        ("{% for m in messages %}{{ m.content if m.role != 'tool' }}{% endfor %}{{ tools }}", "the turns of tools"),
        (
            "{{ raise_exception('no tools') if tools }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "refuses tools",
        ),
    ],
)
def test_what_a_template_does_wrong_is_said(template, text):
    with pytest.raises(ConfigError, match=text):
        check_tools(GRPOConfig(), make_tokenizer(template), FORM)
    check_tools(GRPOConfig(), make_tokenizer(template), ChatFormat())


def test_an_unusable_tool_is_one_line_with_its_setting(calculator):
    with pytest.raises(ConfigError, match="^environment.options.tools: .*: there is no module no_such_module"):
        check(config(calculator, tools=["no_such_module:f"]), RUN)
    with pytest.raises(ConfigError, match="^environment.options.mcp_servers: mine: no-such could not be started: "):
        check(config(calculator, mcp_servers={"mine": {"command": "no-such"}}), RUN)
