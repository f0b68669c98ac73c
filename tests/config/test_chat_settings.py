"""What a configuration gives to the chat template is checked before anything starts, and `--check` shows the result."""

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.sections import RunSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.chat_template import check_chat
from algorithms.preflight.check import check
from tests.chat_families import FAMILIES, GEMMA2, make_tokenizer

RUN = RunSettings(name="mine")
NO_SYSTEM_TEXT = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"


def config(system=None, **kwargs):
    return GRPOConfig().environment(system=system).rl_module(chat_template_kwargs=kwargs)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_template_reads_may_be_set(name):
    check_chat(config("Be brief.\n\nBe kind.", **FAMILIES[name].variables), make_tokenizer(FAMILIES[name].template))


@pytest.mark.parametrize(
    ("template", "settings", "error"),
    [
        (
            FAMILIES["qwen3"].template,
            {"enable_thinkng": False},
            "rl_module.chat_template_kwargs: the chat template of 'embedded:tiny' has no variable enable_thinkng; "
            "did you mean enable_thinking?",
        ),
        (
            FAMILIES["llama3"].template,
            {"messages": []},
            "rl_module.chat_template_kwargs: the chat template of 'embedded:tiny' has no variable messages; "
            "it reads: bos_token, date_string",
        ),
        (
            None,
            {"enable_thinking": False},
            "rl_module.chat_template_kwargs: 'embedded:tiny' has no chat template; "
            "fix: rl_module.chat_template_kwargs={}",
        ),
        (
            GEMMA2,
            {"system": "Be brief."},
            "environment.system: the chat template of 'embedded:tiny' refuses a system turn (System role not "
            "supported); fix: environment.system=null, and the text in environment.instruction",
        ),
        (
            NO_SYSTEM_TEXT,
            {"system": "Be brief."},
            "environment.system: the chat template of 'embedded:tiny' leaves out the system turn; fix: "
            "environment.system=null, and the text in environment.instruction",
        ),
    ],
    ids=["misspelled", "the trainer's own", "no template", "refused", "left out"],
)
def test_what_the_template_does_not_take_is_one_line(template, settings, error):
    with pytest.raises(ConfigError) as raised:
        check_chat(config(**settings), make_tokenizer(template))
    assert str(raised.value).startswith(error)


def test_a_start_is_refused_too(problems, tiny_model):
    wrong = GRPOConfig().environment(data=str(problems)).rl_module(model=str(tiny_model))
    wrong.rl_module(chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(ConfigError, match="has no chat template"):
        check(wrong, RUN)


def test_the_first_prompt_is_shown_as_the_model_sees_it(problems):
    chosen = config("Be\nbrief.").environment(data=str(problems), instruction="").env_runners(max_response_tokens=8)
    lines = check(chosen, RUN).lines
    assert list(lines[-3:-1]) == [
        "first prompt    <|system|>Be",
        "                brief.<|end|><|user|>1+1<|end|><|assistant|>",
    ]
