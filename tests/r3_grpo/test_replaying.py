"""What replay adds to a group, and the advantages of what comes out."""

import numpy as np
import pytest

from algorithms.grpo.types import to_entry

from .conftest import PROMPT, advantages, batch_of, logprob_under, mixed_group, plain_group, sample

STORED = -3.0


def composed(algorithm):
    """An all-wrong group, and the success that the history had for it."""
    algorithm.history.add(to_entry(sample([30], True, logprob=STORED), 1))
    group = plain_group(sample([10], logprob=-1.0), sample([11], logprob=-1.0))
    algorithm.compose_groups(batch_of(group))
    (replayed,) = (one for one in group.samples if one.replayed)
    return group, replayed


@pytest.mark.parametrize(("ratio", "expected"), [("stored", STORED), ("recomputed", logprob_under(PROMPT))])
def test_the_ratio_of_a_replayed_token_is_to_the_stored_or_to_todays_policy(stub, ratio, expected):
    algorithm = stub(replay={"ratio": ratio})
    group, replayed = composed(algorithm)
    assert replayed.old_logprobs[-1] == pytest.approx(expected)
    assert [one.old_logprobs[-1] for one in group.samples if not one.replayed] == [-1.0, -1.0]
    (kept,) = algorithm.history.entries("q", correct=True)
    assert kept.old_logprobs[-1] == STORED


@pytest.mark.parametrize(("scale_rows", "scales"), [("all", [2, 2, 2, 2]), ("replayed", [1, 1, 1, 2])])
def test_the_scale_of_the_deviation_applies_to_the_rows_it_is_for(stub, scale_rows, scales):
    algorithm = stub(replay={"std_scale": 2.0, "scale_rows": scale_rows})
    rewards = np.array([0.0, 0.0, 0.0, 1.0])
    expected = (rewards - rewards.mean()) / (np.array(scales) * rewards.std() + 1e-4)
    np.testing.assert_allclose(advantages(algorithm, mixed_group()), expected)


@pytest.mark.parametrize("scale_rows", ["all", "replayed"])
def test_a_group_without_replay_is_not_scaled(stub, scale_rows):
    algorithm = stub(replay={"std_scale": 2.0, "scale_rows": scale_rows})
    group = plain_group(sample([10]), sample([11], True))
    np.testing.assert_allclose(advantages(algorithm, group), np.array([-0.5, 0.5]) / (0.5 + 1e-4))


def unsolved_group():
    group = plain_group(sample([10], truncated=True), sample([11], truncated=True))
    for one, reward in zip(group.samples, [0.0, -0.1], strict=True):
        one.shaped_reward = reward
    return group


@pytest.mark.parametrize("floor", [0.5, 0.25])
def test_an_unsolved_group_is_divided_by_no_less_than_the_floor(stub, floor):
    algorithm = stub(ranking={"std_floor": floor})
    np.testing.assert_allclose(advantages(algorithm, unsolved_group()), np.array([0.05, -0.05]) / (floor + 1e-4))


@pytest.mark.parametrize("ranking", [{"std_floor": 0.0, "enabled": True}, {"std_floor": 0.5, "enabled": False}])
def test_without_a_floor_or_without_ranking_the_deviation_alone_divides(stub, ranking):
    np.testing.assert_allclose(
        advantages(stub(ranking=ranking), unsolved_group()), np.array([0.05, -0.05]) / (0.05 + 1e-4)
    )


def test_a_group_with_a_correct_member_has_no_floor(stub):
    algorithm = stub(ranking={"std_floor": 0.5})
    group = plain_group(sample([10]), sample([11]), sample([12]), sample([13], True))
    rewards = np.array([0.0, 0.0, 0.0, 1.0])
    assert rewards.std() < 0.5
    np.testing.assert_allclose(advantages(algorithm, group), (rewards - 0.25) / (rewards.std() + 1e-4))
