"""IFBench's checks as reward functions, with the package that keeps them; NLTK's data are the tests' own."""

import json

import pytest

from r3env.child_processes.subprocess_scorer import SubprocessScorer
from r3env.core import Reason
from r3env.envs.function import FunctionEnv
from r3env.registry import OptionError

pytest.importorskip("if_verifiable")
STRICT = "r3env.envs.ifbench:ifbench"


def pose(folder, instruction, arguments, reward=STRICT):
    """An environment of one prompt with one instruction."""
    row = {"key": "7", "prompt": "?", "instruction_id_list": [instruction], "kwargs": [arguments]}
    (folder / "one.jsonl").write_text(json.dumps(row))
    return FunctionEnv(str(folder / "one.jsonl"), preset="ifbench", reward=reward, grading_timeout_s=60)


CASES = {
    "count:word_count_range": ({"min_words": 3, "max_words": 5, "N": None}, "stone upon stone", "stone arches"),
    "words:start_verb": ({}, "write of rivers", "rivers write"),
    "ratio:stop_words": ({"percentage": 40}, "the rivers run", "the end of the river"),
    "format:no_whitespace": ({}, "rivers", "two rivers"),
}


@pytest.mark.parametrize("instruction", CASES)
def test_an_instruction_is_judged_by_the_packages_check(instruction, tmp_path):
    arguments, followed, missed = CASES[instruction]
    with pose(tmp_path, instruction, arguments) as env:
        right, wrong = (env.verify(env.queries["7"], response) for response in (followed, missed))
    assert (right.reason, right.score) == (Reason.EQUAL, 1.0), right.feedback
    assert (wrong.reason, wrong.feedback) == (Reason.DIFFERENT, f"not followed: {instruction}")


def test_the_loose_criterion_forgives_the_first_line(tmp_path):
    response, arguments = "Sure, here it is:\nrivers", CASES["format:no_whitespace"][0]
    for reward, correct in ((STRICT, False), (f"{STRICT}_loose", True)):
        with pose(tmp_path, "format:no_whitespace", arguments, reward) as env:
            assert env.verify(env.queries["7"], response).correct is correct


def test_an_instruction_of_ifeval_is_an_error_not_a_failure(tmp_path):
    with pose(tmp_path, "punctuation:no_comma", {}) as env:
        verdict = env.verify(env.queries["7"], "rivers")
    assert verdict.reason is Reason.ERROR
    assert "IFBench has no instruction 'punctuation:no_comma'" in verdict.feedback


def test_without_its_data_no_environment_is_made(tmp_path, monkeypatch):
    judge = SubprocessScorer(size=1)  # has imported nothing yet, and no other test gets it
    monkeypatch.setattr("r3env.envs.function.shared_judge", lambda: judge)
    file = tmp_path / "without.py"
    # IFEval's are there, IFBench's others are not.
    file.write_text(
        "import nltk, r3env.envs.instructions\nnltk.data.path[:] = []\nfrom r3env.envs.ifbench import ifbench\n"
    )
    with pytest.raises(OptionError) as raised:
        pose(tmp_path, "words:start_verb", {}, f"{file}:ifbench")
    needed = "punkt punkt_tab averaged_perceptron_tagger_eng stopwords"
    assert f"IFBench needs NLTK's data {needed}" in str(raised.value)
    assert f"fix: python -m nltk.downloader {needed}" in str(raised.value)
    judge.close()
