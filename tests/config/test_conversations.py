"""Rows that hold a conversation: measured, shown, sampled and judged with all their turns."""

import contextlib
import json
from pathlib import Path

import pytest

from algorithms.config.sections import RunSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.models.tokenizer import chat_format
from algorithms.preflight.check import check
from algorithms.preflight.context_window import context_use
from algorithms.preflight.environments import EnvironmentFacts, longest_first, user_prompts
from algorithms.rollout.prompt_preview import PromptRenderer
from algorithms.rollout.turns import Turns
from algorithms.rollout.types import Prompt
from r3env import chat
from r3env.envs.function import FunctionEnv
from r3env.envs.math import MathEnv
from r3env.envs.mixture import MixtureEnv
from r3env.envs.tools import ToolEnv
from tests.chat_families import FAMILIES, make_tokenizer

SYSTEM = {"role": "system", "content": "Answer briefly."}
SHOTS = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
ASKED = {"role": "user", "content": "2+3?"}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    file = tmp_path / "rows.jsonl"
    row = {"prompt": [SYSTEM, *SHOTS, ASKED], "reward_model": {"ground_truth": "5"}, "data_source": "sums"}
    file.write_text(json.dumps(row) + "\n")
    return str(file)


@pytest.mark.parametrize("name", ["qwen3", "llama3"])
@pytest.mark.parametrize("system", [None, "Be kind."])
def test_the_policy_sees_the_turns_of_the_row(rows: str, name: str, system: str | None) -> None:
    """A system turn that is set goes before the row's own; the others stay."""
    tokenizer = make_tokenizer(FAMILIES[name].template)
    form = chat_format(GRPOConfig().environment(system=system))
    environment = MathEnv(rows, instruction="")
    tokens = PromptRenderer(Turns(tokenizer, None, form), environment).render(Prompt(environment.uids[0]))
    first = SYSTEM if system is None else {"role": "system", "content": system}
    assert tokens is not None
    assert tokens.tolist() == chat.first_turn(tokenizer, [first, *SHOTS, ASKED])


def test_a_check_measures_and_shows_all_turns(rows: str) -> None:
    config = GRPOConfig().environment(data=rows, instruction="").env_runners(max_response_tokens=8)
    environment = MathEnv(rows, instruction="")
    facts = EnvironmentFacts(1, 1, longest_first(["2+3?", *user_prompts(environment, environment.uids)]))
    shown = [line.removeprefix("first prompt").strip() for line in check(config, RunSettings(name="mine")).lines]
    text = "<|system|>Answer briefly.<|end|><|user|>1+1?<|end|><|assistant|>2<|end|><|user|>2+3?<|end|><|assistant|>"
    assert text in shown
    assert context_use(config, facts).prompt > context_use(config, EnvironmentFacts(1, 1, ("2+3?",))).prompt + 20


def test_a_reward_function_of_trl_gets_all_turns(rows: str, tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(
        "def turns(prompts, completions, **kwargs):\n    return [float(len(prompt)) for prompt in prompts]\n"
    )
    env = FunctionEnv(rows, reward=f"{file}:turns", messages=True, grading_timeout_s=60.0)
    assert env.verify(env.query(env.uids[0]), "5").score == 4.0


def test_mixtures_and_tools_keep_the_turns_of_the_row(rows: str, tmp_path: Path) -> None:
    mixture = MixtureEnv({"sums": {"id": "r3env/Math-v0", "options": {"data": rows}}})
    file = tmp_path / "tools.py"
    body = '"""Add.\n\n    Args:\n        a: One.\n        b: Two.\n    """\n    return a + b'
    file.write_text(f"def add(a: int, b: int) -> int:\n    {body}\n")
    with contextlib.closing(ToolEnv(rows, tools=f"{file}:add")) as tools:
        for environment in (mixture, tools):
            text, info = environment.reset(options={"uid": environment.uids[0]})
            assert text.startswith("2+3?") and info["conversation"] == (SYSTEM, *SHOTS)
            assert environment.step("\\boxed{5}")[1] == 1.0
