"""The reference answers of every registered environment pass its own verifier."""

from pathlib import Path

import gymnasium
import pytest

import r3env
from r3env.core import VerifiableEnv

IDS = [env_id for env_id in gymnasium.registry if env_id.startswith("r3env/")]


QUESTIONS = str(Path(__file__).parent / "samples" / "mmlu-pro.jsonl")
# Rewards, tools and agents are in `examples`.
NEEDED = {
    r3env.FUNCTION_ID: {"reward": "examples.rewards:last_number"},
    r3env.CHOICE_ID: {"data": QUESTIONS, "preset": "mmlu-pro"},
    "r3env/Tools-v0": {"tools": "examples.calculator:multiply"},
    "r3env/Agent-v0": {"agent": "examples.two_opinions:solve"},
}


def test_all_of_ours_are_looked_at() -> None:
    assert {r3env.MATH_ID, r3env.REASONING_GYM_ID, r3env.MIXTURE_ID, r3env.FUNCTION_ID} <= set(IDS)


@pytest.mark.parametrize("env_id", IDS)
def test_every_gold_passes(env_id: str) -> None:
    if env_id == r3env.REASONING_GYM_ID:
        pytest.importorskip("reasoning_gym")
    if env_id == "r3env/Agent-v0":
        pytest.importorskip("openai")
    env = gymnasium.make(env_id, **NEEDED.get(env_id, {})).unwrapped
    assert isinstance(env, VerifiableEnv)
    wrong = [
        query.uid for query in env.queries.values() if not env.verify(query, env.reference_response(query)).correct
    ]
    assert not wrong
