"""Tools with the real model's own chat template, which has none: they stand in the prompt."""

import json

import pytest
from transformers import AutoTokenizer

from algorithms.config.errors import ConfigError
from algorithms.config.sections import RunSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.check import check
from r3env.envs.tools import ToolEnv
from tests.tools.test_tool_episodes import played

pytestmark = pytest.mark.real

TOOLS = {"tools": ["tests.tools.sample_tools:multiply"], "instruction": "", "show_tools": "prompt"}
CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}\n</tool_call>'


@pytest.fixture
def problems_of_tools(tmp_path):
    file = tmp_path / "problems.jsonl"
    rows = [{"uid": uid, "problem": f"What is {n} times 4?", "answer": str(n * 4)} for uid, n in (("q", 3), ("r", 7))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_a_call_and_its_result_are_the_templates_own_turns(real_model, problems_of_tools):
    tokenizer = AutoTokenizer.from_pretrained(real_model)
    environment = ToolEnv(problems_of_tools, **TOOLS)
    _, rollout = played(environment, tokenizer, [f"{CALL}<|im_end|>", "\\boxed{12}<|im_end|>"])
    assert rollout.error is None and rollout.correct and rollout.counts["tool_calls"] == 1
    result = {"role": "user", "content": "<tool_response>\n12\n</tool_response>"}
    turns = [rollout.messages[0], {"role": "assistant", "content": CALL}, result]
    whole = tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    assert rollout.tokens[: len(whole)].tolist() == whole
    assert tokenizer.decode(rollout.tokens[rollout.loss_mask]) == f"{CALL}<|im_end|>\\boxed{{12}}<|im_end|>"


def test_a_template_without_tools_is_refused(real_model, problems_of_tools):
    options = {"data": problems_of_tools, **TOOLS, "show_tools": "template"}
    config = GRPOConfig().environment("r3env/Tools-v0", env_config=options, max_turns=2)
    config.rl_module(model=str(real_model)).env_runners(max_response_tokens=32).evaluation(data=None)
    with pytest.raises(ConfigError, match="leaves out the tools; fix: environment.options.show_tools=prompt"):
        check(config, RunSettings())


@pytest.mark.slow
def test_episodes_with_tools_are_trained_on(config, build, problems_of_tools):
    options = {"data": problems_of_tools, **TOOLS}
    config = config.environment("r3env/Tools-v0", env_config=options, max_turns=2).env_runners(max_response_tokens=32)
    algorithm = build(config)
    algorithm.train()
    record = algorithm.batch.record
    assert record["rollout/environment_errors"] == 0 and 0 <= record["tools/used"] <= 1
    assert record["policy/logp_mismatch_max"] < 1e-3
