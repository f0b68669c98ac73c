"""SvS: what is varied, what is posed, and what pays, with answers made by hand."""

import json
from dataclasses import replace

import pytest

from algorithms.grpo.types import Prompt
from algorithms.methods.svs import INSTRUCTION, PROBLEM, WRITE, SvS, SvSSettings
from algorithms.rollout.types import Context, Split, Turn
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.envs.mixture import MixtureEnv
from tests.hand_made import answer

from .simulated import UIDS, Run, Workers


class Writers(Workers):
    """The nth problem of a group says its accuracy; one response writes none, one the original."""

    WRITTEN = ("<problem>a 1</problem> <problem> say 2 </problem>", "none", "<problem>1  +  1</problem>", "<problem>3")

    def rollout(self, requests):
        self.rounds.append(list(requests))
        places = {}
        return [self._answer(request, places.setdefault(request.group, [])) for request in requests]

    def _answer(self, request, before):
        before.append(request.id)
        place, text = len(before) - 1, str(request.seed % 7)
        if request.context == WRITE:
            text = self.WRITTEN[place]
        correct = request.context != WRITE and place < (
            int(request.prompt.problem[-1]) if request.prompt.problem else 2
        )
        messages = ({"role": "assistant", "content": text},)
        turns = (Turn(1, 2, float(correct), correct),)
        return answer(request, prompt=[1], response=[request.id], correct=correct, messages=messages, turns=turns)


@pytest.fixture
def run():
    """A run whose queries are all solved by half, without a model."""
    run = Run(mechanisms=["svs"])
    run.source._workers = run.workers = Writers()
    run.services.opened_tokenizer = object()  # texts are there
    return run


def groups_of(run, context):
    return [group for group in run.batch.rolled_out if group.prompt.context == context]


def test_a_solved_response_is_varied_and_what_was_written_is_posed(run):
    ((_, _, metrics),) = run.train(1)
    first, writing, answering = run.workers.rounds
    assert len(first) == len(writing) == 5 * 4 and len(answering) == 5 * 4
    prompt = writing[0].prompt
    assert prompt.problem.startswith(INSTRUCTION[:60]) and "Problem:\n1 + 1\n" in prompt.problem
    assert (prompt.uid, prompt.size, writing[0].split) == (first[0].prompt.uid, 4, Split.QUESTION)
    assert answering[0].prompt == Prompt(prompt.uid, PROBLEM, problem="say 2") and answering[0].split is Split.TRAIN
    assert metrics == {"svs/written": 20, "svs/posed": 5, "svs/paid": 5}
    for group in groups_of(run, WRITE):
        assert [sample.rollout.reward for sample in group.samples] == [1, 0, 0, 0]
        assert [sample.rollout.correct for sample in group.samples] == [True, False, False, False]
        assert [sample.rollout.turns[-1].reward for sample in group.samples] == [1, 0, 0, 0]


def test_what_ran_into_the_limit_poses_nothing(run, monkeypatch):
    whole = Writers._answer
    monkeypatch.setattr(Writers, "_answer", lambda *given: replace(whole(*given), truncated=True))
    ((_, _, metrics),) = run.train(1)
    assert metrics == {"svs/written": 20, "svs/posed": 0, "svs/paid": 0}
    assert not any(sample.rollout.correct for group in groups_of(run, WRITE) for sample in group.samples)


@pytest.mark.parametrize(("accuracy", "paid"), [(0, 0), (1, 1), (2, 1), (3, 0), (4, 0)])
def test_a_problem_pays_where_it_is_neither_too_hard_nor_too_easy(run, monkeypatch, accuracy, paid):
    monkeypatch.setattr(Writers, "WRITTEN", [f"<problem>say {accuracy}</problem>"] * 4)
    ((_, _, metrics),) = run.train(1)
    assert metrics["svs/paid"] == 20 * paid
    assert all(sample.rollout.reward == paid for group in groups_of(run, WRITE) for sample in group.samples)


@pytest.mark.parametrize(("solved", "varied"), [(0, 0), (1, 1), (2, 1), (3, 0), (4, 0)])
def test_only_queries_that_are_solved_now_and_then_are_varied(run, monkeypatch, solved, varied):
    monkeypatch.setattr(Writers, "_answer", lambda self, request, before: _counted(request, before, solved))
    run.train(1)
    assert len(groups_of(run, WRITE)) == 5 * varied


def _counted(request, before, solved):
    before.append(request.id)
    text = ({"role": "assistant", "content": "x"},)
    return answer(request, prompt=[1], response=[3], correct=len(before) <= solved, messages=text)


def test_it_changes_no_response_to_the_data(run):
    plain = Run()
    plain.source._workers = plain.workers = Writers()
    with_it, without = ([one for one in each.train(2)[1][0] if one[1] == Context.PLAIN] for each in (run, plain))
    assert json.dumps(with_it) == json.dumps(without)


def test_the_steps_size_is_known_beforehand(run):
    assert SvS.extra_prompts(SvSSettings(), 5) == 5 * (1 + 4)
    run.train(1)
    assert len(run.batch.rolled_out) == 5 + 5 + 5 <= 5 + SvS.extra_prompts(SvSSettings(), 5)
    assert SvS.quoted_tokens(SvSSettings(), 100) > 100


class Words(VerifiableEnv):
    """Takes the answer as it is."""

    def load_queries(self):
        return [Query(uid, f"problem of {uid}", uid) for uid in UIDS[:2]]

    def verify(self, query, response):
        return Verdict(response == f"{query.problem} {query.answer}", Reason.EQUAL)


@pytest.mark.parametrize("mixed", [False, True])
def test_an_environment_poses_a_problem_for_one_episode_against_the_querys_answer(monkeypatch, mixed):
    env, uid = Words(instruction="Say it."), "q01"
    if mixed:
        monkeypatch.setattr("r3env.envs.mixture._make_env", lambda *_: Words(instruction="Say it."))
        env, uid = MixtureEnv({"words": {"id": "r3env/Math-v0"}}), "words/q01"
    listed = env.uids
    assert env.reset(options={"uid": uid, "problem": "other words"})[0] == "other words\n\nSay it."
    assert env.step("other words q01")[-1]["correct"]
    assert env.reset(options={"uid": uid})[0] == "problem of q01\n\nSay it."
    assert env.uids == listed and env.query(uid).problem == "problem of q01"
