"""Advantages of groups that GRPO learns nothing from: NGRPO, W-REINFORCE with its halves, RL-ZVP."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.algorithm import GRPO
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.registry import build_estimator
from algorithms.grpo.rollout_source import RolloutSource
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.learner.batch import TrainingSample
from algorithms.learner.equal_rows import merge_equal_rows
from algorithms.rollout.types import Sampling
from algorithms.utils.errors import RunError
from tests.maths.strategies import repeatable

outcomes = st.lists(st.booleans(), min_size=1, max_size=8)


def estimator(name, **settings):
    config = GRPOConfig().training(advantage=name)
    return build_estimator(config.apply({name: settings}) if settings else config)


def group(correct, rewards=None, entropies=None, replayed=()):
    samples = []
    for index, right in enumerate(correct):
        own = None if entropies is None else entropies[index]
        rollout = SimpleNamespace(correct=right, response_length=3 if own is None else len(own))
        reward = float(right) if rewards is None else rewards[index]
        samples.append(Sample(rollout, reward, entropies=own, replayed=index in replayed))
    return Group(Prompt("q"), samples)


@repeatable
@given(outcomes)
def test_ngrpo_is_grpo_with_a_virtual_success_in_mean_and_deviation(correct):
    rewards = [float(right) for right in correct]
    extended = rewards + [1.0]
    mean = sum(extended) / len(extended)
    std = (sum((reward - mean) ** 2 for reward in extended) / len(extended)) ** 0.5
    expected = [(reward - mean) / (std + 1e-4) if std else 0.0 for reward in rewards]
    found = estimator("ngrpo").advantages(group(correct))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_ngrpo_teaches_eight_failures_and_leaves_eight_successes_alone():
    failures = estimator("ngrpo").advantages(group([False] * 8))
    np.testing.assert_allclose(failures, -1 / 8**0.5, atol=2e-4)
    assert not estimator("ngrpo").advantages(group([True] * 8)).any()


def test_ngrpo_does_not_push_successes_down_that_are_paid_less_than_the_most():
    found = estimator("ngrpo", max_reward=2.0).advantages(group([True] * 3, rewards=[1.2, 1.2, 1.5]))
    np.testing.assert_allclose(found, np.array([-1, -1, 2]) / 2**0.5, atol=2e-3)


def test_ngrpo_counts_in_the_best_reward_of_the_task_and_the_groups_scale_and_floor():
    one = group([False, True], rewards=[-1.0, 2.0])
    one.std_scale, one.std_floor = np.array([1.0, 0.5]), 3.0
    found = estimator("ngrpo", max_reward=5.0).advantages(one)
    np.testing.assert_allclose(found, [-3.0 / (3.0 + 1e-4), 0.0], atol=1e-9)


@pytest.mark.parametrize(("bonus", "best"), [(0.0, 1.0), (1.0, 2.0), (0.5, 1.5)])
def test_ngrpos_virtual_response_gets_the_most_that_a_correct_one_can_get(bonus, best):
    config = GRPOConfig().training(advantage="ngrpo").reward(length_bonus=bonus)
    paid = [0.0, best, (1 + best) / 2]
    found = build_estimator(config).advantages(group([False, True, True], paid))
    extended = np.array([*paid, best])
    np.testing.assert_allclose(found, (extended[:3] - extended.mean()) / (extended.std() + 1e-4), atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"max_reward": 1.0}, {"max_reward": 4.0}])
def test_ngrpo_refuses_a_response_that_is_better_than_the_best(settings):
    one = estimator("ngrpo", **settings)
    best = settings.get("max_reward", 1.0)
    with pytest.raises(RunError) as raised:
        one.advantages(group([False, True], [0.0, 5.0]))
    assert str(raised.value) == (
        f"ngrpo.max_reward: query q was paid 5, and the virtual best response gets {best:g}; fix: set ngrpo.max_reward "
        "to the most that the environment pays, length bonus included"
    )
    assert one.advantages(group([False, True], [0.0, 5.0], replayed=[1])).any(), "stored under other settings"


@pytest.mark.parametrize("name", ["w_reinforce", "psr", "nsr"])
def test_w_reinforce_refuses_a_failure_that_is_paid_more_than_a_success_of_its_scale(name):
    with pytest.raises(RunError, match=r"^training.advantage: an incorrect response to query q was paid 6,"):
        estimator(name).advantages(group([False, True], [6.0, 10.0]))
    estimator(name).advantages(group([False, True], [1.0, 10.0]))


@pytest.mark.parametrize(
    ("name", "settings", "counted"),
    [
        ("psr", {}, [True, False, True]),
        ("nsr", {}, [False, True, False]),
        ("w_reinforce", {}, [True, True, True]),
        ("w_reinforce", {"positive": 0.0}, [False, True, False]),
    ],
)
def test_what_has_no_weight_is_left_out_of_what_divides_the_loss(name, settings, counted):
    one = group([True, False, True])
    for sample, advantage in zip(one.samples, estimator(name, **settings).advantages(one), strict=True):
        sample.advantages = float(advantage)
    assert [sample.is_counted for sample in one.samples] == counted


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("w_reinforce", {}, [0.1, -1.0, 0.15, -1.2]),
        ("w_reinforce", {"positive": 0.5, "negative": 2.0}, [0.5, -2.0, 0.75, -2.4]),
        ("psr", {}, [1.0, 0.0, 1.5, 0.0]),
        ("nsr", {}, [0.0, -1.0, 0.0, -1.2]),
    ],
)
def test_w_reinforce_weighs_successes_and_failures_apart(name, settings, expected):
    one = group([True, False, True, False], rewards=[1.0, 0.0, 1.5, -0.2])
    np.testing.assert_allclose(estimator(name, **settings).advantages(one), expected, atol=1e-12)
    alone = [estimator(name, **settings).advantages(Group(Prompt("q"), [sample]))[0] for sample in one.samples]
    np.testing.assert_allclose(alone, expected, atol=1e-12, err_msg="no response depends on its group")


ENTROPIES = [np.array([0.5, 2.0, 0.0], np.float32), np.array([1.0, 0.25], np.float32)]


def test_rl_zvp_rewards_forks_of_successes_and_spares_those_of_failures():
    right = estimator("rl_zvp", alpha=0.2).advantages(group([True, True], entropies=ENTROPIES))
    wrong = estimator("rl_zvp", alpha=0.2).advantages(group([False, False], entropies=ENTROPIES))
    for found, expected in ((right, [[0.1, 0.4, 0.0], [0.2, 0.05]]), (wrong, [[-0.3, 0, -0.4], [0, -0.15]])):
        for advantages, numbers in zip(found, expected, strict=True):
            np.testing.assert_allclose(advantages, numbers, atol=1e-7)
            assert advantages.dtype == np.float32


def test_rl_zvp_is_grpo_where_rewards_or_outcomes_differ():
    for one in (group([True, False], entropies=ENTROPIES), group([False] * 2, [0.0, 0.1], ENTROPIES)):
        rewards = np.array([sample.reward for sample in one.samples])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        np.testing.assert_allclose(estimator("rl_zvp").advantages(one), expected, atol=1e-9)
    assert not np.any(estimator("rl_zvp").advantages(group([True, False], [0.3, 0.3], ENTROPIES)))


def test_rl_zvp_gives_nothing_to_a_replayed_response_whose_entropies_nobody_knows():
    found = estimator("rl_zvp").advantages(group([True] * 2, entropies=[ENTROPIES[0], None], replayed=[1]))
    assert found[0].any() and found[1].shape == (3,) and not found[1].any()


def test_entropies_are_measured_of_homogeneous_groups_alone():
    scored = []

    class Stages(GRPO):
        def __init__(self):
            self.config, self.active = GRPOConfig().training(advantage="rl_zvp"), []
            self.is_engine_checked = True

        def score_samples(self, samples, *, entropy=False):
            assert entropy
            scored.extend(samples)

    mixed, right, wrong = group([True, False]), group([True, True], replayed=[1]), group([False, False])
    Stages().score_tokens(StepBatch(0, groups=[mixed, right, wrong]))
    assert scored == [right.samples[0], *wrong.samples]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("std", [True, False, False]),
        ("ngrpo", [True, False, True]),
        ("w_reinforce", [True, True, True]),
        ("psr", [True, True, False]),
        ("nsr", [True, False, True]),
        ("rl_zvp", [True, True, True]),
    ],
)
def test_dynamic_sampling_keeps_the_groups_that_an_estimator_learns_from(name, expected):
    source = RolloutSource(None, None, [], TrainingSettings(), Sampling(), 0, estimator(name))
    groups = [group([True, False]), group([True, True]), group([False, False])]
    assert [source._is_informative(one) for one in groups] == expected


def test_equal_responses_with_other_token_advantages_are_not_merged():
    tokens, mask = np.arange(5, dtype=np.int32), np.arange(5) > 1
    sampled = np.zeros(3, np.float32)

    def row(advantages):
        return TrainingSample(tokens, mask, np.array(advantages, np.float32), 0.5, None, sampled)

    same, other = row([0.1, 0.2, 0.3]), row([0.3, 0.2, 0.1])
    merged, owners = merge_equal_rows([same, other, row([0.1, 0.2, 0.3])])
    assert owners == [0, 1, 0] and [one.weight for one in merged] == [1.0, 0.5]
