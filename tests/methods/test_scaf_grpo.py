"""Scaf-GRPO: levels one after another, until one helps; what is borrowed, and what history and metrics count."""

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.metrics import group_metrics
from algorithms.grpo.samples import training_samples
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.methods.scaf_grpo import HINTED
from algorithms.rollout.types import NEW_CONTEXT, Context, Request, Sampling
from tests.hand_made import answer

from .simulated import UIDS, Run, made, services

LEVELS = ["think", "think harder", "7+1=", "7+1=8"]


def info(uid):
    return {"hints": LEVELS}


def sampled(prompt, *correct, head=(1, 2)):
    """A group as it comes in; hinted prompts are longer."""
    prefix = [*head, 9] if prompt.hint else list(head)
    samples = []
    for place, right in enumerate(correct):
        rollout = answer(
            Request(place, prompt, 0, place, Sampling()), prompt=prefix, response=[5, place], correct=right
        )
        samples.append(rollout)
    return Group(prompt, [Sample(one, reward=one.reward) for one in samples])


def plain(*correct, uid="q00"):
    return sampled(Prompt(uid), *correct)


def hinter(**settings):
    scored = []

    def score(samples, *, entropy=False):
        scored.extend(samples)
        for sample in samples:
            sample.old_logprobs = np.full(sample.rollout.response_length, -0.5, np.float32)

    one = made("scaf_grpo", services(info=info, score=score), **{"warmup": 0} | settings)
    one.scored = scored
    return one


def climb(one, groups, helps, responses=(True,)):
    """Let a mechanism ask round by round; level `helps` (from 1) is answered by `responses`, all others wrongly."""
    asked = []
    for round in range(1, 9):
        prompts = one.follow_up(groups, round)
        asked.append([prompt.hint for prompt in prompts])
        for prompt in prompts:
            right = responses if prompt.hint == LEVELS[helps - 1] else [False] * len(responses)
            groups.append(sampled(prompt, *right))
        if not prompts:
            break
    return asked[:-1]


def composed(one, groups, dropped=()):
    batch = StepBatch(0, groups=[group for group in groups if group not in dropped], dropped=list(dropped))
    one.compose(batch)
    return batch


def test_levels_are_asked_one_after_another_until_one_helps():
    one, groups = hinter(), [plain(0, 0, 0), plain(0, 1, uid="q01")]
    assert climb(one, groups, helps=3) == [[LEVELS[0]], [LEVELS[1]], [LEVELS[2]]]
    assert [group.prompt.size for group in groups[2:]] == [1, 1, 1]
    one, groups = hinter(), [plain(0, 0)]
    assert len(climb(one, groups, helps=0)) == len(LEVELS), "the last one does not help either"


def test_eight_levels_fit_into_a_step():
    one = hinter()
    one.services.query = lambda uid: services(info=lambda uid: {"hints": [str(n) for n in range(8)]}).query(uid)
    groups = [plain(0, 0)]
    for round in range(1, 9):
        (prompt,) = one.follow_up(groups, round)
        groups.append(sampled(prompt, round == 8))
    assert one.is_informative(groups[0]), "the answer to the last level is seen without a further round"


def test_the_first_correct_answer_replaces_one_incorrect_answer_behind_its_own_prompt():
    one, groups = hinter(), [plain(0, 0, 0, 0)]
    climb(one, groups, helps=2)
    batch = composed(one, groups)
    (group,) = batch.groups
    assert [sample.rollout.correct for sample in group.samples].count(True) == 1 and len(group.samples) == 4
    (borrowed,) = [sample for sample in group.samples if sample.rollout.correct]
    assert borrowed.rollout.tokens.tolist() == [1, 2, 9, 5, 0] and not borrowed.replayed and not one.scored
    rows = training_samples([(0, borrowed)], one.services.config.training_settings, 8)
    assert rows[0].sampling_logprobs is not None, "it is what this step's policy sampled"
    assert one.metrics == {
        "scaf_grpo/unsolved": 1.0,
        "scaf_grpo/solved": 1.0,
        "scaf_grpo/level": 2.0,
        "scaf_grpo/replaced": 1.0,
    }


def test_as_an_answer_to_the_plain_prompt_it_takes_no_importance_weight():
    one, groups = hinter(plain_prompt=True), [plain(0, 0, 0)]
    climb(one, groups, helps=1)
    (group,) = composed(one, groups).groups
    (borrowed,) = [sample for sample in group.samples if sample.rollout.correct]
    assert borrowed.rollout.tokens.tolist() == [1, 2, 5, 0] and borrowed.rollout.loss_mask.tolist() == [0, 0, 1, 1]
    assert borrowed.replayed and one.scored == [borrowed] and borrowed.old_logprobs.tolist() == [-0.5, -0.5]
    (row,) = training_samples([(0, borrowed)], one.services.config.training_settings, 8)
    assert row.sampling_logprobs is None and row.old_logprobs is not None


def test_the_plain_prompt_is_the_groups_own_whichever_answer_is_replaced():
    """Another method has put an answer behind another prompt into each place but one."""
    for step in range(10):
        one, groups = hinter(plain_prompt=True), [plain(0, 0, 0)]
        climb(one, groups, helps=1)
        for place in (0, 2):
            foreign = sampled(Prompt("q00", HINTED, hint="?"), 0, head=(7,)).samples[0]
            foreign.borrowed = True
            groups[0].samples[place] = foreign
        batch = StepBatch(step, groups=list(groups))
        one.compose(batch)
        (borrowed,) = [sample for sample in batch.groups[0].samples if sample.rollout.correct]
        assert borrowed.rollout.tokens.tolist() == [1, 2, 5, 0]


def test_later_turns_that_repeat_the_hinted_prompt_stay_behind_it():
    one, groups = hinter(plain_prompt=True), [plain(0, 0)]
    (prompt,) = one.follow_up(groups, 1)
    groups.append(sampled(prompt, True, head=(1, NEW_CONTEXT)))
    (group,) = composed(one, groups).groups
    (borrowed,) = [sample for sample in group.samples if sample.rollout.correct]
    assert NEW_CONTEXT in borrowed.rollout.tokens and not borrowed.replayed


@pytest.mark.parametrize("plain_prompt", [False, True])
def test_history_and_metrics_count_what_was_sampled_once_and_plain_pass_rates_have_no_hint_in_them(plain_prompt):
    one, groups = hinter(plain_prompt=plain_prompt), [plain(0, 0, 0), plain(1, 0, uid="q01")]
    before = [id(sample.rollout) for group in groups for sample in group.samples]
    climb(one, groups, helps=2)
    hinted = [id(sample.rollout) for group in groups[2:] for sample in group.samples]
    batch = composed(one, groups)
    assert sorted(id(sample.rollout) for sample in batch.fresh) == sorted([*before, *hinted])
    outcomes = batch.outcomes()
    assert outcomes["q00"].tolist() == [False] * 3 and sorted(outcomes["q01"]) == [False, True]
    assert group_metrics(batch.groups)["groups/solve_none"] == 0.5
    assert [group.prompt.context for group in batch.groups] == [Context.PLAIN] * 2
    assert {group.prompt.context for group in batch.dropped} == {HINTED}


@pytest.mark.parametrize(("replace", "right", "expected"), [(1, 3, 1), (2, 3, 2), (4, 3, 2), (4, 1, 1)])
def test_so_many_are_replaced_and_one_of_the_groups_own_stays(replace, right, expected):
    one, groups = hinter(responses=3, replace=replace), [plain(0, 0, 0)]
    climb(one, groups, helps=1, responses=[place < right for place in range(3)])
    (group,) = composed(one, groups).groups
    assert sum(sample.rollout.correct for sample in group.samples) == expected
    assert len(group.samples) == 3 and len(group.left_out) == expected


def test_a_group_of_one_has_nothing_to_be_compared_with():
    one, groups = hinter(), [plain(0)]
    climb(one, groups, helps=1)
    (group,) = composed(one, groups).groups
    assert not group.any_correct and one.metrics["scaf_grpo/replaced"] == 0


def test_which_answer_is_replaced_is_drawn():
    places = set()
    for step in range(20):
        one, groups = hinter(), [plain(0, 0, 0)]
        climb(one, groups, helps=1)
        batch = StepBatch(step, groups=list(groups))
        one.compose(batch)
        places.add([sample.rollout.correct for sample in batch.groups[0].samples].index(True))
    assert places == {0, 1, 2}


def test_replayed_members_are_never_replaced():
    one, groups = hinter(), [plain(0, 0)]
    climb(one, groups, helps=1)
    stored = plain(1).samples[0]
    stored.replayed = True
    groups[0].samples.append(stored)
    (group,) = composed(one, groups).groups
    assert group.samples[2] is stored and sum(sample.rollout.correct for sample in group.samples) == 2


def test_before_the_warm_up_is_over_and_for_queries_without_hints_nothing_is_asked():
    one = hinter(warmup=3)
    for step, expected in ((2, 0), (3, 1)):
        one.services.step = step
        assert len(one.follow_up([plain(0, 0)], 1)) == expected
    some = made("scaf_grpo", services(info=lambda uid: {"hints": LEVELS if uid == "q01" else None}), warmup=0)
    asked = some.follow_up([plain(0), plain(0, uid="q01")], 1)
    assert [prompt.uid for prompt in asked] == ["q01"]


def test_one_text_is_one_level_and_the_last_may_be_the_only_one():
    text = made("scaf_grpo", services(info=lambda uid: {"hints": "7+1=8"}))
    assert text.levels("q00") == ["7+1=8"]
    assert hinter(levels="last").levels("q00") == LEVELS[-1:]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            {},
            "environment.columns.hints: no query has a hint; fix: name the data's column of hints",
        ),
        ({"hints": 7}, "environment.columns.hints: that of query q00 is 7; fix: make it a text or a list of texts"),
        ({"hints": [7]}, "environment.columns.hints: that of query q00 is [7]; fix: make it a text or a list of texts"),
    ],
)
def test_data_without_hints_is_one_line(row, line):
    with pytest.raises(ConfigError) as raised:
        made("scaf_grpo", services(info=lambda uid: row))
    assert str(raised.value) == line


@pytest.mark.parametrize("rounds", [0, 2])
def test_in_a_run_groups_that_a_hint_solves_are_kept_and_nothing_else_moves(rounds):
    """Some queries fail always; a hint makes no difference to the simulated policy, so that rates of 0.3 solve some."""
    rates = {uid: 0.15 for uid in UIDS}
    settings = {"scaf_grpo": {"warmup": 0}}
    on = Run(mechanisms=["scaf_grpo"], settings=settings, rates=rates, info=info, max_resample_rounds=rounds)
    off = Run(rates=rates)
    solved = 0
    for (rolled_out, _, metrics), (without, _, _) in zip(on.train(6), off.train(6), strict=True):
        solved += metrics["scaf_grpo/solved"]
        assert metrics["scaf_grpo/replaced"] == metrics["scaf_grpo/solved"] <= metrics["scaf_grpo/unsolved"]
        if not rounds:
            asked = {(uid, tuple(sorted(tokens))) for uid, context, tokens in rolled_out if context == Context.PLAIN}
            assert asked == {(uid, tuple(sorted(tokens))) for uid, _, tokens in without}
    assert solved > 3
    assert all(group.prompt.context == Context.PLAIN for group in on.batch.groups)
    assert not rounds or all(not group.homogeneous for group in on.batch.groups)
