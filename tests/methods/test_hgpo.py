"""HGPO on hand-made episodes: turn groups by state and history, per token; GiGPO as its case without history."""

from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.registry import build_estimator
from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.methods.hgpo import discounted_returns
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.types import Turn


def estimator(**settings):
    return build_estimator(GRPOConfig().training(advantage="hgpo").apply({"hgpo": settings}))


def episode(*turns, reward=0.0, replayed=False, uid="q"):
    """Turns (state, reward), each of two tokens of the policy's behind one of the environment's."""
    made = [Turn(3 * n + 2, 3 * n + 4, reward=paid, state=state) for n, (state, paid) in enumerate(turns)]
    length = 3 * max(1, len(turns)) + 1
    mask = np.zeros(length, bool)
    for turn in made or [Turn(2, 4)]:
        mask[turn.start : turn.end] = True
    rollout = SimpleNamespace(
        turns=() if replayed else tuple(made),
        tokens=np.arange(length),
        loss_mask=mask,
        uid=uid,
        context="plain",
        correct=reward > 0,
    )
    return Sample(rollout, reward, replayed=replayed)


def by_turn(found):
    """Both tokens of a turn have one advantage: these, turn by turn."""
    for values in found:
        assert values.dtype == np.float32 and (values[::2] == values[1::2]).all()
    return [values[::2].tolist() for values in found]


def norm(values):
    values = np.array(values)
    return (values - values.mean()) / (values.std() + 1e-6)


def test_returns_are_discounted_from_the_end():
    turns = [Turn(0, 1, reward=r) for r in (1.0, 0.0, 2.0)]
    assert discounted_returns(turns, 0.5) == [1 + 0.5 * (0 + 0.5 * 2), 1.0, 2.0]


def test_turns_are_compared_with_those_of_the_same_state_at_each_depth_of_history():
    """Three ways to the door: two by the hall, one by the garden."""
    group = Group(
        Prompt("q"),
        [
            episode(("start", 0), ("hall", 0), ("door", 1), reward=1),
            episode(("start", 0), ("hall", 0), ("door", 0)),
            episode(("start", 0), ("garden", 0), ("door", 0.5), reward=1),
        ],
    )
    found = by_turn(estimator(history=2, discount=0.5, power=1.0).advantages(group))
    starts = norm([0.25, 0.0, 0.125])
    halls_0 = halls_1 = norm([0.5, 0.0])  # alone with the state, and with the start before it: the same two turns
    doors_0, doors_1 = norm([1.0, 0.0, 0.5]), norm([1.0, 0.0])
    doors_2 = doors_1  # start, hall, door
    expected = [
        [starts[0], (halls_0[0] + 2 * halls_1[0]) / 3, (doors_0[0] + 2 * doors_1[0] + 3 * doors_2[0]) / 6],
        [starts[1], (halls_0[1] + 2 * halls_1[1]) / 3, (doors_0[1] + 2 * doors_1[1] + 3 * doors_2[1]) / 6],
        [starts[2], 0.0, 0.0],  # the garden has nobody to be compared with; this door is the mean of all
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    even = by_turn(estimator(history=2, discount=0.5, power=0.0).advantages(group))
    assert even[0][2] == pytest.approx((doors_0[0] + doors_1[0] + doors_2[0]) / 3, abs=1e-5)
    shallow = by_turn(estimator(history=1, discount=0.5).advantages(group))
    assert shallow[0][2] == pytest.approx((doors_0[0] + 2 * doors_1[0]) / 3, abs=1e-5)


def test_gigpo_adds_the_episodes_advantage_to_that_of_its_turns_states():
    samples = [episode(("s", 0), ("t", 1), reward=1), episode(("s", 0), ("t", 0)), episode(("s", 0), ("u", 0))]
    group = Group(Prompt("q"), samples)
    found = by_turn(estimator(history=0, discount=0.95, episode_weight=1.0).advantages(group))
    episodes = (np.array([1, 0, 0]) - 1 / 3) / (np.std([1, 0, 0]) + 1e-4)
    starts, ts = norm([0.95, 0.0, 0.0]), norm([1.0, 0.0])
    expected = [[starts[0], ts[0]], [starts[1], ts[1]], [starts[2], 0.0]]
    np.testing.assert_allclose(
        found, [[a + e for a in own] for own, e in zip(expected, episodes, strict=True)], atol=1e-5
    )


def test_a_state_that_a_response_meets_twice_is_compared_with_itself():
    group = Group(Prompt("q"), [episode(("a", 0), ("b", 0), ("b", 1), reward=1)])
    found = by_turn(estimator(history=0, discount=0.5).advantages(group))
    np.testing.assert_allclose(found, [[0, -1, 1]], atol=1e-5)


def test_a_later_turn_in_the_first_state_is_compared_with_first_turns():
    group = Group(Prompt("q"), [episode(("a", 0), ("a", 1), reward=1), episode(("a", 0), ("x", 0))])
    found = by_turn(estimator(history=0, discount=0.95).advantages(group))
    (first, again, other) = norm([0.95, 1.0, 0.0])
    np.testing.assert_allclose(found, [[first, again], [other, 0.0]], atol=1e-5)


def test_a_response_to_a_hinted_prompt_is_compared_with_those_to_the_plain_one():
    """As GRPO does: Scaf-GRPO puts a hinted success in the place of a failure."""
    group = Group(Prompt("q"), [*(episode(("", 0)) for _ in range(3)), episode(("", 1), reward=1)])
    group.samples[3].rollout.context = "hinted"
    np.testing.assert_allclose(by_turn(estimator().advantages(group)), norm([0, 0, 0, 1])[:, None], atol=1e-5)


def test_distances_may_go_without_the_deviation():
    group = Group(Prompt("q"), [episode(("a", 3), reward=3), episode(("a", 1), reward=1)])
    found = by_turn(estimator(normalize="mean", episode_weight=2.0).advantages(group))
    np.testing.assert_allclose(found, [[1 + 2], [-1 - 2]], atol=1e-6)


def test_a_floor_under_the_deviation_bounds_the_episodes_part():
    group = Group(Prompt("q"), [episode(("a", 0), reward=0.1), episode(("a", 0), reward=-0.1)], std_floor=0.5)
    found = by_turn(estimator(episode_weight=1.0).advantages(group))
    np.testing.assert_allclose(found, [[0.2], [-0.2]], rtol=1e-3)


def test_one_turn_without_a_state_is_grpo_and_later_ones_without_have_no_advantage():
    rewards = [1.0, 0.0, 0.0, 1.0]
    group = Group(Prompt("q"), [episode(("", reward), reward=reward) for reward in rewards])
    np.testing.assert_allclose(by_turn(estimator().advantages(group)), norm(rewards)[:, None], atol=1e-5)
    two = Group(Prompt("q"), [episode(("", 0), ("", reward), reward=reward) for reward in rewards])
    found = np.array(by_turn(estimator(discount=1.0).advantages(two)))
    np.testing.assert_allclose(found[:, 0], norm(rewards), atol=1e-5)
    assert not found[:, 1].any()
    named = Group(Prompt("q"), [episode(("", 0), ("", 0), ("x", reward), reward=reward) for reward in rewards])
    assert np.array(by_turn(estimator().advantages(named)))[:, 2].any(), "a gap in the history ends it, no more"
    others = Group(Prompt("q"), [episode(("", float(n)), uid=f"q{n}") for n in range(3)])
    assert not np.any(by_turn(estimator().advantages(others))), "turns of other queries are no comparison"


def test_a_replayed_response_has_the_episodes_part_alone():
    group = Group(Prompt("q"), [episode(("a", 0)), episode(("a", 0)), episode(reward=1.0, replayed=True)])
    assert not np.any(by_turn(estimator().advantages(group)))
    assert [sample.is_counted for sample in group.samples] == [True, True, False]
    found = by_turn(estimator(episode_weight=1.0).advantages(group))
    assert found[2][0] > 0 > found[0][0] == found[1][0]


def test_a_homogeneous_group_is_informative_if_its_turns_differ():
    same = Group(Prompt("q"), [episode(("a", 0), ("b", 1), reward=1), episode(("a", 0), ("b", 1), reward=1)])
    partly = Group(Prompt("q"), [episode(("a", 0.5), ("b", 0)), episode(("a", 0), ("b", 0))])
    assert [estimator().is_informative(group) for group in (same, partly)] == [False, True]


def test_turns_and_a_ratio_of_the_whole_response_do_not_go_together():
    with pytest.raises(ConfigError, match=r"^training.ratio_level: sequence has one ratio .*fix: .*ratio_level=token$"):
        load(None, ["training.advantage=hgpo", "training.ratio_level=sequence"], GRPOConfig)


def test_what_only_the_episodes_part_would_read_is_refused_without_one():
    hgpo = ["training.advantage=hgpo", "reward.length_bonus=0"]
    for acting, fix in (
        (["reward.length_bonus=0.5"], "reward.length_bonus=0"),
        (["reward.overlong_penalty=0.5"], "reward.overlong_penalty=0"),
        (["training.kl_in=reward", "training.beta=0.1"], "training.kl_in=loss"),
    ):
        with pytest.raises(ConfigError, match=f"has no effect with hgpo.episode_weight=0, .*; fix: {fix}, or hgpo"):
            load(None, [*hgpo, *acting], GRPOConfig)
        load(None, [*hgpo, *acting, "hgpo.episode_weight=1"], GRPOConfig)
    with pytest.raises(ConfigError, match="^ranking.enabled: has no effect with hgpo"):
        load(None, hgpo, R3GRPOConfig)
    load(None, [*hgpo, "ranking.enabled=false"], R3GRPOConfig)
