"""RLEP, LUFFY and ExGRPO as settings of replay; ExGRPO's draw of queries; RoRecomp's two batches."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.config.errors import ConfigError
from algorithms.config.sections import TrainingSettings
from algorithms.grpo.samples import training_samples
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.history.store import ReplayHistory
from algorithms.learner.batch import TrainingSample
from algorithms.learner.equal_rows import merge_equal_rows
from algorithms.learner.loss import LossInputs, token_loss
from algorithms.losses.base import LossSettings
from algorithms.losses.term import POLICY, term
from algorithms.methods.rorecomp import COMPENSATION, priority
from algorithms.rollout.types import Request, Sampling
from tests.hand_made import answer
from tests.maths.strategies import entry

from .simulated import Run, group, made, services

# -- Replay -----------------------------------------------------------------------------------------------------------


def scored(samples, *, entropy=False):
    """The policy is surer of what begins with a larger token."""
    for sample in samples:
        length = sample.rollout.response_length
        sample.old_logprobs = np.full(length, -9.0, np.float32)
        sample.entropies = np.full(length, 1 / float(sample.rollout.response_tokens[0]), np.float32)


def replay(*entries, **settings):
    """Replay over a history of these entries."""
    history = ReplayHistory()
    for each in entries:
        history.add(each)
    return made("replay", services(opened_history=history, score=scored), **settings)


def composed(one, *groups):
    one.compose(StepBatch(0, groups=list(groups)))
    return [[(s.rollout.correct, int(s.rollout.response_tokens[0])) for s in g.samples if s.replayed] for g in groups]


SHAPED = term("shaped", gamma=0.1)
STORED = [entry(response=(step, 9), correct=correct, step=step) for step, correct in ((1, True), (2, True), (3, False))]


@pytest.mark.parametrize(
    ("settings", "failed", "mixed", "solved"),
    [
        ({}, [True], [], [False]),
        ({"outcome": "correct"}, [True], [], []),
        ({"outcome": "correct", "groups": "all"}, [True], [True], [True]),
        ({"outcome": "correct", "groups": "all", "k": 2}, [True, True], [True, True], [True, True]),
    ],
)
def test_which_groups_get_which_outcome(settings, failed, mixed, solved):
    one = replay(*STORED, **settings)
    groups = group("q", 0, 0), group("q", 0, 1), group("q", 1, 1)
    assert [[correct for correct, _ in added] for added in composed(one, *groups)] == [failed, mixed, solved]


def test_a_solved_group_stays_without_a_signal_when_only_successes_are_added():
    one = replay(*STORED, outcome="correct", groups="all")
    assert [one.is_informative(each) for each in (group("q", 0, 0), group("q", 1, 1))] == [True, False]
    assert replay(*STORED).is_informative(group("q", 1, 1))


def test_an_outcome_that_a_mixed_group_cannot_have_is_refused():
    one = replay(groups="all")
    with pytest.raises(ConfigError, match=r"replay.outcome: opposite is not defined .*; fix: replay.outcome=correct"):
        one.check(one.settings, SimpleNamespace(training_settings=TrainingSettings()))


def test_exgrpos_draw_is_the_stored_response_of_the_lowest_mean_entropy():
    one = replay(*STORED, draw="lowest_entropy", k=1)
    failed = group("q", 0, 0)
    assert composed(one, failed) == [[(True, 2)]]
    (replayed,) = [sample for sample in failed.samples if sample.replayed]
    assert replayed.old_logprobs.tolist() == STORED[1].old_logprobs.tolist(), "scoring is only to choose"
    recomputed = group("q", 0, 0)
    composed(replay(*STORED, draw="lowest_entropy", ratio="recomputed"), recomputed)
    assert recomputed.samples[-1].old_logprobs.tolist() == [-9, -9]


def test_luffys_ratio_is_the_policys_own_probability_and_shaped():
    luffy = group("q", 0, 0)
    composed(replay(*STORED, ratio="probability", shaping=0.1), luffy)
    assert luffy.samples[-1].old_logprobs.tolist() == [0, 0] and luffy.samples[-1].terms == {SHAPED: 1.0}
    assert all(sample.terms == {POLICY: 1.0} for sample in luffy.fresh)
    plain = group("q", 0, 0)
    composed(replay(*STORED), plain)
    assert plain.samples[-1].terms == {term("policy", dual_clip=3.0): 1.0} and plain.samples[-1].old_logprobs.any()


def by_hand(logprob, old, advantage, shaping, low=0.2, high=0.2):
    """The objective of one token and its slope in the log-prob."""
    ratio = np.exp(logprob - old)
    if shaping:
        return ratio / (ratio + shaping) * advantage, shaping * ratio / (ratio + shaping) ** 2 * advantage
    bounded = np.clip(ratio, 1 - low, 1 + high)
    value = min(ratio * advantage, bounded * advantage)
    return value, ratio * advantage if value == ratio * advantage else 0.0


def rows(shaping):
    rng = np.random.default_rng(3)
    made_rows = []
    for number, length in enumerate((4, 3, 5)):
        mask = np.arange(2 + length) >= 2
        made_rows.append(
            TrainingSample(
                tokens=np.arange(2 + length, dtype=np.int32),
                loss_mask=mask,
                advantages=1.0 if number == 1 else float(rng.normal()),
                weight=0.1 * (number + 1),
                old_logprobs=-(rng.random(length) + 3.0 * (number == 1)).astype(
                    np.float32
                ),  # clipped but for its shape
                sampling_logprobs=None if number else np.zeros(length, np.float32),
                terms={term("shaped", gamma=shaping) if shaping and number == 1 else POLICY: 1.0},
            )
        )
    return made_rows


@pytest.mark.parametrize("shaping", [0.0, 0.1, 2.0])
def test_shaped_tokens_have_the_objective_f_of_r_and_the_others_their_own(shaping):
    made_rows, settings = rows(shaping), LossSettings(clip_low=0.2, clip_high=0.2, importance_cap=0.0)
    inputs = LossInputs.of(made_rows, torch.device("cpu"), settings)
    assert len(inputs.weights) == 1 + (shaping > 0)
    logprobs = torch.tensor(-np.random.default_rng(4).random(12), dtype=torch.float32, requires_grad=True)
    value, sums = token_loss(logprobs, None, inputs, settings)
    value.backward()
    expected, slopes, place, clipped = 0.0, [], 0, 0
    for row in made_rows:
        for old in row.old_logprobs:
            objective, slope = by_hand(
                logprobs[place].item(), float(old), row.advantages, shaping if POLICY not in row.terms else 0.0
            )
            expected -= row.weight * objective
            slopes.append(-row.weight * slope)
            clipped += slope == 0
            place += 1
    assert value.item() == pytest.approx(expected, rel=1e-5)
    assert logprobs.grad.numpy() == pytest.approx(np.array(slopes), rel=1e-4, abs=1e-7)
    assert int(sums["clipped"]) == clipped > 0, "no shaped token is clipped"
    parts = [
        token_loss(logprobs.detach()[part], None, inputs.part(part), settings)[0]
        for part in (slice(0, 5), slice(5, 12))
    ]
    assert float(sum(parts)) == pytest.approx(expected, rel=1e-5), "a chunk of tokens at a time"


def test_shaped_rows_reach_the_learner_and_are_not_merged_with_others():
    sample = group_of_rows(1)[0].samples[0]
    sample.terms, sample.replayed, sample.old_logprobs = {SHAPED: 1.0}, True, np.zeros(3, np.float32)
    other = Sample(sample.rollout, reward=1.0, old_logprobs=sample.old_logprobs, replayed=True)
    made_rows = training_samples([(0, sample), (0, other)], TrainingSettings(), 8)
    assert [list(row.terms) for row in made_rows] == [[SHAPED], [POLICY]]
    assert all(row.sampling_logprobs is None for row in made_rows), "no importance weight"
    assert len(merge_equal_rows(made_rows)[0]) == 2


# -- ExGRPO's queries -------------------------------------------------------------------------------------------------


def started(**settings):
    one = made("exgrpo", **settings)
    Run.update(
        one, group("q00", 0, 0, 0, 1), group("q01", 0, 0, 1, 1), group("q02", 1, 1, 1, 1), group("q03", 0, 0, 0, 0)
    )
    return one


def test_exgrpo_draws_counts_of_successes_by_a_normal_then_a_query_uniformly():
    one = started()
    Run.update(one, group("q04", 0, 0, 1, 1))
    rng, drawn = np.random.default_rng(0), Counter()
    for _ in range(4000):
        drawn[one.experience(1, rng)[0]] += 1
    weights = {1: np.exp(-0.5), 2: 1.0}
    one_success = weights[1] / sum(weights.values())
    expected = {"q00": one_success, "q01": (1 - one_success) / 2, "q04": (1 - one_success) / 2}
    assert {uid: count / 4000 for uid, count in drawn.items()} == pytest.approx(expected, abs=0.03)
    assert sorted(one.experience(9, rng)) == ["q00", "q01", "q04"], "none twice"
    assert one.experience(9, rng, without=["q00", "q04"]) == ["q01"]


def test_exgrpo_begins_when_the_policy_is_good_enough_and_goes_on():
    one = made("exgrpo")
    Run.update(one, group("q01", 0, 0, 0, 1))
    assert one.metrics["exgrpo/started"] == 0 and not set(one.take(4, 0)) - set(made("epoch").take(4, 0))
    Run.update(one, group("q01", 0, 0, 1, 1))
    Run.update(one, group("q05", 0, 0, 0, 0))
    assert one.metrics["exgrpo/started"] == 1
    assert one.take(4, 1)[0] == "q01"


def test_exgrpos_other_queries_are_the_epochs_and_none_is_left_out():
    one, plain = started(share=0.5), made("epoch")
    taken = [one.take(4, step) for step in range(6)]
    assert all(set(each[:2]) == {"q00", "q01"} for each in taken)
    assert [uid for each in taken for uid in each[2:]] == plain.take(12, 0) and one.drawn == 12


# -- RoRecomp ---------------------------------------------------------------------------------------------------------


def group_of_rows(first, lengths=(3,), outcomes=(1,)):
    samples = []
    for number, (length, outcome) in enumerate(zip(lengths, outcomes, strict=True)):
        request = Request(first + number, Prompt("q01"), 0, 0, Sampling())
        rollout = answer(request, prompt=[1, 2], response=[first + number] * length, correct=bool(outcome))
        samples.append(Sample(rollout, reward=float(outcome)))
    return [Group(Prompt("q01"), samples)]


def test_priority_are_the_shortest_correct_and_the_longest_incorrect_ones():
    lengths, correct = np.array([5, 2, 9, 4, 7, 1]), np.array([1, 1, 1, 0, 0, 0], bool)
    assert np.flatnonzero(priority(lengths, correct, 0.34)).tolist() == [0, 1, 3, 4]
    assert np.flatnonzero(priority(lengths, correct, 0.3)).tolist() == [1, 4]
    assert np.flatnonzero(priority(lengths, ~np.zeros(6, bool), 0.5)).tolist() == [1, 3, 5]


def step(one, number, lengths=(3, 5, 4, 6), outcomes=(1, 1, 0, 0)):
    """A step of one group, with advantages and log-probs by hand; returns what it trains on."""
    batch = StepBatch(number, groups=group_of_rows(10 * number, lengths, outcomes))
    one.compose(batch)
    (only,) = batch.groups
    rewards = np.array([sample.reward for sample in only.samples])
    for sample, advantage in zip(only.samples, one.advantages(only, rewards - rewards.mean()), strict=True):
        sample.advantages = advantage if np.ndim(advantage) else float(advantage)
    one.before_update(batch)
    trained = [
        (int(s.rollout.response_tokens[0]), s.replayed, float(np.mean(s.advantages)))
        for each in batch.groups
        for s in each.samples
        if np.any(s.advantages)
    ]
    for sample in only.samples:
        sample.old_logprobs = np.full(sample.rollout.response_length, -0.1 * (number + 1), np.float32)
    one.update_history(batch)
    assert batch.groups == [only], "metrics and files see the step's own"
    return trained


def test_the_others_are_trained_on_when_the_buffer_is_full_under_their_own_log_probs_and_advantages():
    one = made("rorecomp", share=0.5, buffer=3)
    assert step(one, 0) == [(0, False, 0.5), (3, False, -0.5)]
    assert one.metrics == {"rorecomp/priority": 0.5, "rorecomp/buffer": 2.0, "rorecomp/compensated": 0.0}
    assert step(one, 1) == [(10, False, 0.5), (13, False, -0.5)]
    assert step(one, 2) == [
        (20, False, 0.5),
        (23, False, -0.5),
        *[(1, True, 0.5), (2, True, -0.5), (11, True, 0.5)],
    ]
    assert one.metrics["rorecomp/compensated"] == 3 and one.metrics["rorecomp/buffer"] == 3
    assert [entry.step for entry, _ in one.buffer] == [1, 2, 2]
    batch = StepBatch(3)
    one.before_update(batch)
    (first, *_) = [sample for each in batch.groups for sample in each.samples]
    assert {each.prompt.context for each in batch.groups} == {COMPENSATION}
    assert first.old_logprobs == pytest.approx(np.full(4, -0.2))


def test_a_buffer_that_holds_several_times_its_size_is_trained_on_whole():
    one = made("rorecomp", share=0.5, buffer=1)
    assert len(step(one, 0)) == 2 and len(one.buffer) == 2
    assert [(number, replayed) for number, replayed, _ in step(one, 1)[2:]] == [(1, True), (2, True)]
    assert [entry.step for entry, _ in one.buffer] == [1, 1]


def test_what_waits_counts_in_the_loss_when_its_turn_comes_and_not_before():
    one = made("rorecomp", share=0.5, buffer=2)
    for number in (0, 1):
        batch = StepBatch(number, groups=group_of_rows(10 * number, (3, 5, 4, 6), (1, 1, 0, 0)))
        one.compose(batch)
        for sample, own in zip(
            batch.groups[0].samples, one.advantages(batch.groups[0], np.array([0.5, 0.5, -0.5, -0.5])), strict=True
        ):
            sample.advantages = own
        one.before_update(batch)
        samples = [(index, sample) for index, each in enumerate(batch.groups) for sample in each.samples]
        rows = training_samples(samples, TrainingSettings(loss_aggregation="token"), 8)
        tokens = 3 + 6 + (5 + 4) * number
        assert [row.weight * tokens for row in rows] == pytest.approx([1, 0, 0, 1, *[1, 1] * number])
        for sample in batch.groups[0].samples:
            sample.old_logprobs = np.zeros(sample.rollout.response_length, np.float32)
        one.update_history(batch)
    assert [list(row.terms) for row in rows] == [[POLICY]] * 4 + [[term("policy", dual_clip=3.0)]] * 2, (
        "its log-probs are stale, as those of replay"
    )


def test_groups_without_an_advantage_leave_nothing_for_later():
    one = made("rorecomp", buffer=1)
    assert step(one, 0, outcomes=(0, 0, 0, 0)) == [] and not one.buffer
    assert one.metrics["rorecomp/priority"] == 1


def test_the_buffer_is_restored_to_the_last_bit():
    one, other = (made("rorecomp", share=0.5, buffer=5) for _ in range(2))
    for number in range(2):
        step(one, number)
    arrays, state = one.state()
    other.restore({name: array.copy() for name, array in arrays.items()}, state)
    assert [step(one, number) for number in (2, 3)] == [step(other, number) for number in (2, 3)]
    for (mine, own), (theirs, others) in zip(one.buffer, other.buffer, strict=True):
        for name in ("tokens", "loss_mask", "old_logprobs"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        np.testing.assert_array_equal(own, others)
        assert (mine.uid, mine.reward, mine.step, mine.text) == (theirs.uid, theirs.reward, theirs.step, theirs.text)
    empty = made("rorecomp")
    empty.restore(*made("rorecomp").state())
    empty.restore({}, {})
    assert not empty.buffer


def test_advantages_of_tokens_are_kept_token_by_token():
    one = made("rorecomp", share=0.5)
    (only,) = group_of_rows(0, (2, 3), (1, 1))
    found = one.advantages(only, [np.array([1, 2], np.float32), np.array([3, 4, 5], np.float32)])
    assert [each.tolist() for each in found] == [[1, 2], [0, 0, 0]]
    assert [advantages.tolist() for _, advantages in one.later] == [[3, 4, 5]]
