"""The three mechanisms under the settings of GRPO's relatives: advantages, overlong penalty, dynamic sampling."""

from dataclasses import replace

import numpy as np
import pytest

from algorithms.grpo.rollout_source import RolloutSource
from algorithms.grpo.types import Group, Prompt, to_entry
from algorithms.rollout.types import Sampling, Turn

from .conftest import (
    advantages,
    batch_of,
    finish,
    mixed_group,
    plain_group,
    reflected,
    reflection_group,
    sample,
    stored,
)

ROOM = {"env_runners": {"max_response_tokens": 10}}


def test_under_another_advantage_a_replayed_response_is_a_member_like_any_other(stub):
    rewards = np.array([0.0, 0.0, 0.0, 1.0])
    mean = advantages(stub(training={"advantage": "mean"}), mixed_group())
    np.testing.assert_allclose(mean, rewards - 0.25)
    others = advantages(stub(training={"advantage": "leave_one_out"}), mixed_group())
    np.testing.assert_allclose(others, [-1 / 3, -1 / 3, -1 / 3, 1.0])


@pytest.mark.parametrize("kind", ["mean", "leave_one_out"])
def test_where_nothing_is_divided_unsolved_groups_push_as_little_as_their_ranks_say(stub, kind):
    group = plain_group(sample([10], truncated=True), sample([11], truncated=True))
    for one, reward in zip(group.samples, [0.0, -0.1], strict=True):
        one.shaped_reward = reward
    found = advantages(stub(training={"advantage": kind}), group)
    assert found == pytest.approx([0.05, -0.05] if kind == "mean" else [0.1, -0.1])


@pytest.mark.parametrize("floor", [0.1, 0.0])
def test_correct_answers_that_differ_by_few_tokens_push_little(stub, floor):
    """200 of 32,768 tokens apart: with the bonus as the only difference, the deviation alone makes it a full push."""

    def of(*samples, joined=()):
        algorithm = stub(reward={"length_bonus": 1.0, "length_bonus_std_floor": floor})
        algorithm.shape_rewards(batch_of(group := plain_group(*samples)))
        group.samples += joined
        return advantages(algorithm, group)

    apart = 100 / 32768
    push = apart / (max(apart, floor) + 1e-4)
    assert of(sample(range(100), True), sample(range(300), True)) == pytest.approx([push, -push])
    stored, paid = sample(range(200), True), 2 - 2 * apart
    stored.rollout, stored.reward, stored.replayed = replace(stored.rollout, reward=paid), paid, True
    among = of(sample(range(100), True), sample(range(300), True), joined=[stored])
    assert among == pytest.approx([push, -push, 0] if floor else [1.18, -1.18, 0], abs=0.01)
    assert of(sample([10], True), sample([11])) == pytest.approx([1, -1], abs=1e-3)
    paid_more = sample([10], True)
    paid_more.rollout = replace(paid_more.rollout, reward=1.02)
    assert of(paid_more, sample([11], True)) == pytest.approx([1, -1], abs=0.02)


def shaped(algorithm, *samples):
    for rank, one in enumerate(samples):  # the earlier, the higher the peak and the lower the mean
        count = one.rollout.response_length
        one.entropies = np.where(np.arange(count) > count - 3, 9 - rank, rank).astype(np.float32)
    algorithm.shape_rewards(batch_of(plain_group(*samples)))
    return [one.training_reward for one in samples]


def test_a_rank_does_not_buy_off_the_overlong_penalty(stub):
    """No truncated response is worth more than a finished wrong one, penalty or not."""
    algorithm = stub(**ROOM, reward={"overlong_penalty": 0.5, "overlong_share": 0.4}, ranking={"order": "entropy"})
    at_the_limit = [sample(range(10, 20), truncated=True), sample(range(20, 30), truncated=True)]
    cut, worse, nearly, short = shaped(algorithm, *at_the_limit, sample(range(9)), sample([1]))
    assert (cut, worse) == (-0.5, -0.6)
    assert nearly == pytest.approx(-0.5 * 3 / 4) and short == 0


def test_nor_where_a_context_without_room_cut_it_off_and_a_long_turn_is_penalized(stub):
    algorithm = stub(**ROOM, reward={"overlong_penalty": 0.5, "overlong_share": 0.4}, ranking={"order": "entropy"})
    cut_early = [sample(range(10, 15), truncated=True), sample(range(20, 25), truncated=True)]
    *cut, nearly = shaped(algorithm, *cut_early, sample(range(9)))
    assert nearly == cut[0] == pytest.approx(-0.5 * 3 / 4) and cut[1] == pytest.approx(nearly - 0.1), "in their order"


def in_turns(*lengths, correct=True, read=4):
    """An answer of several turns, each followed by what the environment says."""
    tokens, mask, turns = [1, 2], [False] * 2, []
    for length in lengths:
        turns.append(Turn(len(tokens), len(tokens) + length))
        tokens, mask = tokens + [10] * length + [3] * read, mask + [True] * length + [False] * read
    one = sample([10], correct)
    rollout = replace(
        one.rollout,
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mask),
        sampling_logprobs=np.zeros(sum(lengths), np.float32),
        turns=tuple(turns),
    )
    return replace(one, rollout=rollout, old_logprobs=None)


@pytest.mark.parametrize(
    ("lengths", "penalty"),
    [
        ((1200, 1200), 0.0),  # no turn is near its limit
        ((2048, 100), -0.5),  # the first turn was cut off
        ((100, 2048), -0.5),
        ((100, 1843, 100), -0.25),
        ((1843,), -0.25),
        ((), 0.0),
    ],
)
@pytest.mark.parametrize("judged", [True, False])
def test_the_overlong_penalty_is_that_of_the_longest_turn_as_the_limit_is_each_turns(stub, lengths, penalty, judged):
    reward = {"overlong_penalty": 0.5, "overlong_share": 0.2, "length_bonus": 0.0}
    algorithm = stub(env_runners={"max_response_tokens": 2048}, environment={"max_turns": 3}, reward=reward)
    one = in_turns(*lengths)
    if not judged:  # an episode by hand: turns are then what stands between the environment's texts
        one.rollout = replace(one.rollout, turns=())
    algorithm.shape_rewards(batch_of(plain_group(one)))
    assert one.length_penalty == pytest.approx(penalty, abs=1e-3)
    assert one.reward == pytest.approx(1 + penalty, abs=1e-3)


def test_the_quoted_attempt_of_a_second_turn_is_no_part_of_its_length_and_a_begun_answer_is(stub):
    algorithm = stub(env_runners={"max_response_tokens": 10}, reward={"overlong_penalty": 0.5, "overlong_share": 0.4})
    short = reflected([60] * 6)
    algorithm.shape_rewards(batch_of(reflection_group(short)))
    assert short.length_penalty == 0
    group = Group(Prompt("q", "prefix", response_prefix=np.array([5, 5], np.int32)), [in_turns(6, 7)])
    algorithm.shape_rewards(batch_of(group))
    assert group.samples[0].length_penalty == pytest.approx(-0.25), "2 and 6 tokens in the first turn, 7 in the second"


def test_the_length_bonus_counts_all_turns_together(stub):
    algorithm = stub(reward={"length_bonus": 1.0, "length_bonus_max_tokens": 100})
    one = in_turns(20, 30)
    algorithm.shape_rewards(batch_of(plain_group(one)))
    assert one.reward == pytest.approx(1.5)


def test_the_history_keeps_the_penalised_reward_but_no_rank(stub):
    algorithm = stub(**ROOM, reward={"overlong_penalty": 0.5, "length_bonus": 0.0})
    samples = [sample(range(10, 20), truncated=True), sample([1], True)]
    shaped(algorithm, *samples)
    algorithm.update_history(batch_of(plain_group(*samples)))
    assert [entry.reward for entry in stored(algorithm.history)] == [1.0, -0.5]


def informs(algorithm, group):
    """What dynamic sampling asks."""
    training = algorithm.config.training_settings
    return RolloutSource(None, None, algorithm.active, training, Sampling(), 0)._is_informative(group)


def test_homogeneous_groups_are_informative_where_a_mechanism_will_make_them_so(stub):
    wrong, right = plain_group(sample([10]), sample([11])), plain_group(sample([12], True), sample([13], True))
    mixed = plain_group(sample([10]), sample([11], True))
    cut = plain_group(sample([10], truncated=True), sample([11], truncated=True))
    one_cut = plain_group(sample([10], truncated=True), sample([11]))
    two_cut = plain_group(*(sample([token], truncated=token < 12) for token in (10, 11, 12)))
    groups = [mixed, wrong, right, cut, one_cut, two_cut]

    def informative(**sections):
        algorithm = stub(**sections)
        algorithm.history.add(to_entry(sample([30], True), 1))
        return [informs(algorithm, group) for group in groups]

    off = {"enabled": False}
    assert informative(replay=off, ranking=off) == [True, *[False] * 5]
    assert informative(ranking=off) == [True, True, False, True, True, True], "there is a success to replay, no failure"
    assert informative(replay=off) == [True, False, False, True, False, True], "one has no rank"
    flat = {"order": "flat"}
    assert informative(replay=off, ranking=flat) == [True, False, False, False, False, True], (
        "ranks that tie differ from a finished one"
    )


def test_looking_whether_replay_can_help_draws_nothing(stub):
    algorithm = stub()
    algorithm.history.add(to_entry(sample([30], True), 1))
    algorithm.history.add(to_entry(sample([31], True), 1))
    before = [entry.tokens.tolist() for entry in stored(algorithm.history)]
    group = plain_group(sample([10]), sample([11]))
    assert informs(algorithm, group) and len(group.samples) == 2
    assert [entry.tokens.tolist() for entry in stored(algorithm.history)] == before


def test_dropped_groups_are_remembered_with_log_probs_of_the_policy_that_sampled_them(stub):
    algorithm = stub(reflection={"distill": True})
    dropped = plain_group(sample([10], True), sample([11], True))
    for one in dropped.samples:
        one.old_logprobs = None
    finish(algorithm, reflection_group(reflected([20], True)), dropped=[dropped])
    assert sorted(entry.response_tokens.tolist() for entry in stored(algorithm.history)) == [[10], [11], [20], [20]]
    assert algorithm.history.attempts("q") == 2
    assert algorithm.metric("reflection/distilled") == 1, "under the bare prompt that the dropped group has"
