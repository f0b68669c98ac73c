"""IFEval's checks as reward functions, with the package that keeps them; NLTK's data are the tests' own."""

import json
from pathlib import Path

import pytest

from r3env.child_processes.subprocess_scorer import SubprocessScorer
from r3env.core import Reason
from r3env.envs.function import FunctionEnv
from r3env.registry import OptionError

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


def pose(folder, instruction, arguments):
    """An environment of one prompt with one instruction."""
    file = folder / "one.jsonl"
    row = {"key": 1, "prompt": "?", "instruction_id_list": [instruction], "kwargs": [arguments]}
    file.write_text(json.dumps(row))
    return FunctionEnv(str(file), preset="ifeval", reward="r3env.envs.instructions:ifeval", grading_timeout_s=60)


@pytest.mark.parametrize(
    ("instruction", "arguments", "followed", "missed"),
    [
        (
            "length_constraints:number_sentences",
            {"relation": "at least", "num_sentences": 3},
            "Dr. Ames came. She sat. She left.",
            "Dr. Ames came. She sat.",
        ),
        (
            "change_case:capital_word_frequency",
            {"capital_relation": "at least", "capital_frequency": 2},
            "The NILE and the RHINE.",
            "The NILE and the Rhine.",
        ),
    ],
)
def test_checks_that_split_text_read_the_data_of_nltk(instruction, arguments, followed, missed, tmp_path):
    with pose(tmp_path, instruction, arguments) as env:
        right, wrong = (env.verify(env.queries["1"], response) for response in (followed, missed))
    assert (right.reason, wrong.reason) == (Reason.EQUAL, Reason.DIFFERENT), (right.feedback, wrong.feedback)


WITHOUT = {
    "punkt_tab": (
        "import nltk\nnltk.data.path[:] = []",
        "IFEval needs NLTK's data punkt_tab, which this machine has not; fix: python -m nltk.downloader punkt_tab",
    ),
    "if_verifiable": (
        "import sys\nsys.modules['if_verifiable'] = None",
        "IFEval needs the package if_verifiable; fix: pip install -e '.[ifeval]'",
    ),
}


@pytest.fixture
def fresh_judge(monkeypatch):
    """A process for reward functions that has imported none yet, and that no other test gets."""
    judge = SubprocessScorer(size=1)
    monkeypatch.setattr("r3env.envs.function.shared_judge", lambda: judge)
    yield
    judge.close()


@pytest.mark.usefixtures("fresh_judge")
@pytest.mark.parametrize("lacking", WITHOUT)
def test_without_what_the_checks_need_no_environment_is_made(lacking, tmp_path):
    prepare, line = WITHOUT[lacking]
    file = tmp_path / f"without_{lacking}.py"
    file.write_text(f"{prepare}\nfrom r3env.envs.instructions import ifeval\n")
    with pytest.raises(OptionError) as raised:
        FunctionEnv(DATA, preset="ifeval", reward=f"{file}:ifeval", grading_timeout_s=60)
    assert raised.value.option == "reward" and line in str(raised.value)
