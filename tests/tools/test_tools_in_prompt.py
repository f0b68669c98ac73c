"""`show_tools: prompt`: tools and results in user turns, for chat templates that have no tools."""

import json
import re

import pytest

from algorithms.config.errors import ConfigError
from algorithms.preflight.check import check
from r3env.envs.tools import ToolEnv
from r3env.registry import OptionError
from r3env.tools.calls import find_calls
from tests.chat_families import FAMILIES, make_tokenizer

from .templates import CALLS
from .test_tool_checks import RUN, config
from .test_tool_env import HERE
from .test_tool_episodes import PROBLEM, played

CALL = CALLS["qwen2_5"]


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "problems.jsonl").write_text(PROBLEM)
    tools = [f"{HERE}:multiply", f"{HERE}:speak"]
    return ToolEnv(str(tmp_path / "problems.jsonl"), tools=tools, instruction="", show_tools="prompt")


def test_the_prompt_describes_each_function_and_a_call_that_is_read_as_one(environment):
    prompt, info = environment.reset(seed=0)
    assert prompt.endswith("\n\nWhat is 3 times 4?") and not info["tools"]
    functions = [
        json.loads(line) for line in prompt.splitlines() if line.startswith('{"name"') and "description" in line
    ]
    assert [function["name"] for function in functions] == ["multiply", "speak"]
    (form,) = re.findall(r"<tool_call>.*</tool_call>", prompt, re.DOTALL)
    (call,) = find_calls(form.replace("…", "3"))
    assert (call.name, call.arguments, call.problem) == ("multiply", {"a": 3, "b": 3}, "")


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_results_are_a_user_turn_and_what_the_policy_wrote_is_trained_on(environment, family):
    tokenizer = make_tokenizer(FAMILIES[family].template)
    end = FAMILIES[family].end
    request, rollout = played(environment, tokenizer, [f"{CALL}{CALL}{end}", f"\\boxed{{12}}{end}"])
    assert rollout.error is None and rollout.correct
    result = "<tool_response>\n12\n</tool_response>"
    assert rollout.messages[2] == {"role": "user", "content": f"{result}\n{result}"}
    assert tokenizer.decode(rollout.tokens[rollout.loss_mask]) == f"{CALL}{CALL}{end}\\boxed{{12}}{end}"
    assert rollout.counts == {"tool_calls": 2, "failed_tool_calls": 0}


def test_a_template_without_tools_is_taken():
    assert any(
        "You can call functions" in line for line in check(config("embedded:tiny", show_tools="prompt"), RUN).lines
    )
    with pytest.raises(ConfigError, match="fix: environment.options.show_tools=prompt, or a model"):
        check(config("embedded:tiny"), RUN)


def test_another_value_is_refused():
    with pytest.raises(OptionError, match="must be template or prompt, it is 'system'"):
        ToolEnv("embedded:train", tools=f"{HERE}:multiply", show_tools="system")
