"""maj@k counts the answers that each environment reads: letters, tags, boxes, or what a reward function says."""

import numpy as np
import pytest

from algorithms.evaluation.benchmarks import sample_parts
from algorithms.evaluation.metrics import benchmark_scores
from algorithms.evaluation.responses import ResponseFolder
from algorithms.rollout.engines.base import Completion, FinishReason
from algorithms.rollout.turns import Episode, Turns
from algorithms.rollout.types import Sampling
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.envs.choice import ChoiceEnv
from r3env.envs.function import FunctionEnv
from r3env.envs.reasoning_gym import ReasoningGymEnv
from r3env.grading import grade
from tests.chat_families import FAMILIES, encode, make_tokenizer

SAMPLES = "tests/r3env/samples"
SUM = '{"uid": "sum", "problem": "2 + 2", "answer": "4"}\n'
HERE = f"{__file__}:"


def sampled(environment, uid, texts, folder):
    """The stored responses of an evaluation in which the policy writes these texts, each to the same query."""
    tokenizer = make_tokenizer(FAMILIES["llama3"].template)
    turns = Turns(tokenizer, None)

    def play(request):
        episode = Episode(request, environment, request.id)
        turns.begin(episode)
        tokens = np.array(encode(tokenizer, texts[request.id] + FAMILIES["llama3"].end), np.int32)
        turns.step(episode, Completion(tokens, np.zeros(len(tokens), np.float32), FinishReason.STOP))
        assert episode.done and episode.error is None, episode.error
        return episode.rollout(0)

    sample_parts(
        lambda requests, _: [play(request) for request in requests],
        environment,
        [[uid]],
        ResponseFolder(folder),
        samples=len(texts),
        sampling=Sampling(),
        truncator=None,
        seed="0",
        on_progress=lambda *_: None,
    )
    return ResponseFolder(folder).read()


def majority(environment, uid, texts, folder):
    """maj@n of texts, and the answers that it counts; None where it is not reported."""
    responses = sampled(environment, uid, texts, folder)
    ((_, table),) = benchmark_scores(responses, ks=[1]).items()
    found = table["scores"].get(f"maj@{len(texts)}")
    return found and found.mean, [response.answer for response in responses]


def test_letters_vote_whether_in_a_box_or_not(tmp_path):
    environment = ChoiceEnv(f"{SAMPLES}/mmlu-pro.jsonl", preset="mmlu-pro")
    right = environment.query("9001").answer
    wrong = "A" if right != "A" else "B"
    texts = [f"Answer: {right}", f"**Answer: ({right})**", f"Answer: {wrong}", f"\\boxed{{{wrong}}}", "I pass."]
    share, answers = majority(environment, "9001", [*texts, f"Answer: {wrong}"], tmp_path)
    assert answers == [right, right, wrong, wrong, None, wrong] and share == 0.0
    share, _ = majority(environment, "9001", texts, tmp_path / "tie")
    assert share == 0.5


def test_what_stands_between_tags_votes(tmp_path):
    environment = ReasoningGymEnv(task="chain_sum", size=2)
    uid = environment.uids[0]
    right = environment.query(uid).answer
    texts = [
        f"<answer>{right}</answer>",
        f"so <answer> {right} </answer>",
        "\\boxed{1} <answer>-1</answer>",
        "\\boxed{2}",
    ]
    assert majority(environment, uid, texts, tmp_path) == (1.0, [right, right, "-1", None])


def share_followed(problem, response):
    """A reward without a single answer: how many words there are."""
    return len(response.split()) / 10


def says_its_answer(response, answer):
    word = response.split()[-1]
    return Verdict(word == answer, Reason.EQUAL if word == answer else Reason.DIFFERENT, answer=word)


@pytest.mark.parametrize(
    ("function", "expected"), [("share_followed", (None, [None] * 3)), ("says_its_answer", (1.0, ["4", "4", "5"]))]
)
def test_of_a_reward_function_what_its_verdict_says_votes(function, expected, tmp_path):
    (tmp_path / "sums.jsonl").write_text(SUM)
    environment = FunctionEnv(str(tmp_path / "sums.jsonl"), reward=HERE + function)
    texts = ["It is \\boxed{4} or 4", "It is \\boxed{4} or 4", "It is \\boxed{5} or 5"]
    assert majority(environment, "sum", texts, tmp_path) == expected


def test_instructions_that_are_followed_have_no_majority(tmp_path):
    pytest.importorskip("if_verifiable")
    environment = FunctionEnv(
        f"{SAMPLES}/ifeval.jsonl", preset="ifeval", reward="r3env.envs.instructions:ifeval", grading_timeout_s=60.0
    )
    uid = environment.uids[0]
    assert majority(environment, uid, ["\\boxed{1}"] * 3, tmp_path) == (None, [None] * 3)


class LastWord(VerifiableEnv):
    def load_queries(self):
        return [Query("sum", "2 + 2", "4")]

    def verify(self, query, response):
        return grade(f"\\boxed{{{response.split()[-1]}}}", query.answer)


class Silent(LastWord):
    def verify(self, query, response):
        correct = response.endswith(query.answer)
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)


@pytest.mark.parametrize(
    ("environment", "expected"), [(LastWord, (1.0, ["4", "8/2", "5"])), (Silent, (None, [None] * 3))]
)
def test_of_an_environment_of_ones_own_what_its_verdict_says_votes(environment, expected, tmp_path):
    texts = ["\\boxed{5} or 4", "\\boxed{5} or 8/2", "\\boxed{5} or 5"]
    assert majority(environment(), "sum", texts, tmp_path) == expected
