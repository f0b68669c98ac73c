"""Fission: which failures of a step become prompts, what these say, and how many there are at most."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.methods import fission
from algorithms.methods.fission import FISSION, Fission, FissionSettings
from algorithms.rollout.types import Context, Rollout, Turn

from .simulated import Run, made, services


def response(correct, *feedback, number=0, uid="q00"):
    """A rollout of a prompt of two tokens; each turn is two tokens of the policy's and one of the environment's."""
    turns = tuple(Turn(3 * n + 2, 3 * n + 4, feedback=said) for n, said in enumerate(feedback))
    length = 3 * len(turns) + 1
    mask = np.zeros(length, bool)
    for turn in turns:
        mask[turn.start : turn.end] = True
    tokens = np.arange(length, dtype=np.int32) + 100 * number
    fields = {"request_id": number, "group": 0, "context": Context.PLAIN, "truncated": False, "verdict": ""}
    rollout = Rollout(
        uid=uid,
        tokens=tokens,
        loss_mask=mask,
        sampling_logprobs=np.zeros(mask.sum(), np.float32),
        reward=float(correct),
        correct=correct,
        weights_version=0,
        turns=turns,
        **fields,
    )
    return Sample(rollout, reward=rollout.reward)


def plain(*correct, uid="q00", context=Context.PLAIN):
    samples = [response(right, f"said {place}", number=place, uid=uid) for place, right in enumerate(correct)]
    return Group(Prompt(uid, context), samples)


def quoted(prompts):
    return [int(prompt.attempt.prompt_tokens[0]) // 100 for prompt in prompts]


def test_the_prompt_is_the_query_the_whole_failure_and_what_was_said_of_its_last_turn():
    one = made("fission")
    failure = response(False, "first", "second", number=3)
    (prompt,) = one.follow_up([Group(Prompt("q00"), [response(True, ""), failure])], 1)
    assert (prompt.uid, prompt.context, prompt.size, prompt.baseline) == ("q00", FISSION, None, None)
    assert prompt.attempt.prompt_tokens.tolist() == [300, 301]
    assert prompt.attempt.response_tokens.tolist() == [302, 303, 304, 305, 306], "both turns, and what stood between"
    assert prompt.feedback == "second"
    assert one.metrics["fission/prompts"] == one.metrics["fission/feedback"] == 1


def test_without_feedback_the_environment_speaks_for_itself():
    one = made("fission")
    silent = Group(Prompt("q00"), [response(False, "said before", "")])
    assert [prompt.feedback for prompt in one.follow_up([silent], 1)] == [""]
    assert one.metrics["fission/prompts"] == 1 and one.metrics["fission/feedback"] == 0


def test_long_feedback_is_cut(monkeypatch):
    monkeypatch.setattr(fission, "MAX_FEEDBACK_TOKENS", 20)
    one = made("fission")
    (prompt,) = one.follow_up([Group(Prompt("q00"), [response(False, "x" * 50)])], 1)
    assert prompt.feedback == "x" * 20  # a letter is a token here


def test_only_failures_of_plain_groups_are_split_and_so_many_of_each():
    groups = [plain(0, 1, 0, 0), plain(1, 1), plain(0, 0, context="hinted"), plain(0, 1, uid="q01")]
    found = made("fission", failures=2, max_share=1.0).follow_up(groups, 1)
    assert [prompt.uid for prompt in found] == ["q00", "q00", "q01"]
    assert len(set(quoted(found[:2]))) == 2 and set(quoted(found[:2])) <= {0, 2, 3}


def test_each_failure_of_a_group_is_as_likely():
    counts = np.zeros(4)
    for step in range(300):
        given = services()
        given.step = step
        counts[quoted(made("fission", given).follow_up([plain(0, 1, 0, 0)], 1))] += 1
    assert counts[1] == 0 and (np.abs(counts[[0, 2, 3]] - 100) < 5 * np.sqrt(300 * 2 / 9)).all()


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.25, 2), (0.5, 6), (1.0, 12)])
def test_a_share_of_the_steps_prompts_is_the_limit(share, expected):
    settings = FissionSettings(failures=2, max_share=share)
    one = Fission(settings, services())
    groups = [plain(0, 0, uid=f"q{n:02}") for n in range(6)]
    assert len(one.follow_up(groups, 1)) == expected == Fission.extra_prompts(settings, 6)


def test_there_is_one_round_and_groups_that_come_later_have_theirs():
    """What a greedy probe lets through comes in a round later."""
    one = made("fission", max_share=0.5)
    first, late = plain(0, 0), plain(0, 0, uid="q01")
    recovered = Group(Prompt("q00", FISSION), [response(False, "again")])
    groups = [first]
    assert len(one.follow_up(groups, 1)) == 1
    groups += [recovered, late]
    assert [prompt.uid for prompt in one.follow_up(groups, 2)] == ["q01"]
    assert one.follow_up(groups, 3) == []
    assert len(one.follow_up([plain(0)], 1)) == 1, "a new step"


def test_it_reports_how_often_the_policy_recovers():
    one = made("fission")
    groups = [plain(0, 0), Group(Prompt("q00", FISSION), [response(True, ""), response(False, "")])]
    one.update_history(StepBatch(0, groups=groups[:1], dropped=groups[1:]))
    assert one.metrics["fission/correct"] == 0.5


def test_tokens_of_quotation_and_feedback_are_counted():
    assert Fission.quoted_tokens(FissionSettings(), 4096) == 2048 + 512
    assert Fission.quoted_tokens(FissionSettings(), 300) == 300 + 512


def test_in_a_run_each_failure_has_a_group_of_its_own_and_nothing_else_moves():
    off, on = Run(), Run(mechanisms=["fission"])
    (without,), (with_it,) = off.train(1), on.train(1)
    plain_groups = [group for group in with_it[0] if group[1] == Context.PLAIN]
    assert json.dumps(plain_groups) == json.dumps(without[0])
    split = [group for group in on.batch.groups if group.prompt.context == FISSION]
    assert split and with_it[2]["fission/prompts"] == len(split)
    assert {len(group.samples) for group in split} == {4}
    failed = {group.prompt.uid for group in on.batch.groups if not all(s.rollout.correct for s in group.samples)}
    assert {group.prompt.uid for group in split} <= failed


def test_what_has_no_turns_has_no_feedback():
    bare = SimpleNamespace(**{**vars(response(False, "x").rollout), "turns": ()}, response_length=2, prompt_length=2)
    (prompt,) = made("fission").follow_up([Group(Prompt("q00"), [Sample(bare, 0.0)])], 1)
    assert prompt.feedback == ""
