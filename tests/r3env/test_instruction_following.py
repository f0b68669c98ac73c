"""IFEval's checks as reward functions, with the package that keeps them."""

from pathlib import Path

import pytest

from r3env.core import Reason
from r3env.envs.function import FunctionEnv

pytest.importorskip("if_verifiable")
DATA = str(Path(__file__).parent / "samples" / "ifeval.jsonl")
RIVERS, BRIDGES = "9001", "9002"
# Long enough that its language is told.
PLAIN = "the longest rivers that flow through this part of the world are the rhine and the rhone and the danube"


@pytest.fixture(scope="module")
def env():
    with FunctionEnv(DATA, preset="ifeval", reward="r3env.envs.instructions:ifeval", grading_timeout_s=60) as made:
        yield made


@pytest.fixture(scope="module")
def loose():
    reward = "r3env.envs.instructions:ifeval_loose"
    with FunctionEnv(DATA, preset="ifeval", reward=reward, grading_timeout_s=60) as made:
        yield made


@pytest.mark.parametrize(
    ("uid", "response", "score"),
    [
        (RIVERS, PLAIN, 1.0),
        (RIVERS, PLAIN.title(), 0.5),
        (RIVERS, PLAIN.title() + ", too", 0.0),
        (RIVERS, f"<think>Rhine, Rhone</think>{PLAIN}", 1.0),
        (RIVERS, "", 0.0),
        (BRIDGES, "stone upon stone makes an arch", 1.0),
        (BRIDGES, "stone makes an arch", 0.0),
    ],
)
def test_the_score_is_the_share_of_instructions_that_are_followed(env, uid, response, score):
    verdict = env.verify(env.queries[uid], response)
    assert verdict.score == score and verdict.correct == (score == 1.0)
    assert ("not followed" in verdict.feedback) == (0 < score < 1 or (not score and bool(response)))


def test_the_loose_criterion_forgives_the_first_line(env, loose):
    response = f"Sure, here they are:\n{PLAIN}"
    assert not env.verify(env.queries[RIVERS], response).correct
    assert loose.verify(loose.queries[RIVERS], response).correct


def test_an_instruction_without_a_check_is_an_error_not_a_failure(env, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"key": 1, "prompt": "?", "instruction_id_list": ["a:b"], "kwargs": [{}]}\n')
    with FunctionEnv(str(file), preset="ifeval", reward="r3env.envs.instructions:ifeval", grading_timeout_s=60) as own:
        verdict = own.verify(own.queries["1"], "text")
    assert verdict.reason is Reason.ERROR and "IFEval has no instruction 'a:b'" in verdict.feedback
