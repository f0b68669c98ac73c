"""GDPO: each reward function's rewards are normalized by themselves."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.mechanism import Group, Sample, StepBatch
from algorithms.methods.gdpo import GDPO, GDPOSettings, weights_of
from algorithms.rollout.types import Prompt

OPTIONS = {"reward": ["rewards:right", "rewards:brief"], "weights": [1.0, 0.5]}


def group(*rewards: Any, verdict: str = "different") -> Group:
    """A response for each: what right and brief returned, or fewer of them."""
    rollouts = [SimpleNamespace(rewards=dict(each), verdict=verdict, correct=False) for each in rewards]
    return Group(Prompt("q"), [Sample(rollout, reward=7.0) for rollout in rollouts])  # type: ignore[arg-type]


def gdpo(**options: Any) -> GDPO:
    config = GRPOConfig().environment(options={**OPTIONS, **options})
    return GDPO(GDPOSettings(), SimpleNamespace(config=config))  # type: ignore[arg-type]


def both(right: float, brief: float) -> dict[str, float]:
    return {"right": right, "brief": brief}


def test_each_reward_is_normalized_in_its_group_and_the_sum_over_the_step() -> None:
    first = group(both(1, 300), both(0, 100), both(1, 100), both(0, 300))
    second = group(both(1, 0), both(0, 0))
    one = gdpo()
    one.before_advantages(StepBatch(0, groups=[first, second]))
    sums = np.array([1.5, -1.5, 0.5, -0.5, 1.0, -1.0])  # deviations 0.5 and 100; then 0.5 and 0
    expected = sums / sums.std()
    found = [*one.advantages(first, np.zeros(4)), *one.advantages(second, np.zeros(2))]
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert one.metrics["gdpo/std"] == pytest.approx(sums.std(), rel=1e-3)


def test_where_a_function_says_nothing_it_adds_nothing_and_its_mean_is_of_the_others() -> None:
    members = group(both(1, 1), {"right": 0.0}, both(1, 0), {"right": 0.0})
    np.testing.assert_allclose(gdpo().sums(members), [1.5, -1.0, 0.5, -1.0], rtol=1e-3)


def test_equal_rewards_get_exact_zeros_and_a_group_of_one_outcome_may_still_teach() -> None:
    equal, brief = group(both(0.1, 0.3), both(0.1, 0.3), both(0.1, 0.3)), group(both(0, 1), both(0, 0))
    assert not gdpo().sums(equal).any() and not gdpo().is_informative(equal)
    assert gdpo().is_informative(brief)


def test_a_truncated_correct_response_gets_nothing_from_any_function() -> None:
    members = group(both(0, 0), both(0, 0))
    members.samples += group(both(1, 1), verdict="truncated").samples
    assert not gdpo().sums(members).any()
    members.samples += group(both(1, 1), verdict="cut_off").samples
    assert gdpo().sums(members).any(), "an episode without room for a summary keeps what its turns were paid"


def test_an_environment_without_parts_has_its_reward() -> None:
    members = group({}, {})
    members.samples[1].reward = 3.0
    np.testing.assert_allclose(gdpo().sums(members), [1.0, -1.0], rtol=1e-3)


def test_a_group_with_a_stored_or_ranked_response_has_one_reward() -> None:
    members = group(both(0, 1), both(0, 0))
    members.samples[0].shaped_reward, members.samples[1].reward = 2.0, 0.0
    np.testing.assert_allclose(gdpo().sums(members), [1.0, -1.0], rtol=1e-3)


def test_weights_are_those_of_the_environment_and_of_a_mixtures_parts() -> None:
    assert weights_of(OPTIONS) == {"right": 1.0, "brief": 0.5}
    parts = {"sums": {"options": OPTIONS}, "games": {"id": "x"}}
    assert weights_of({"environments": parts}) == {"sums/right": 1.0, "sums/brief": 0.5}
    assert weights_of({"reward": "rewards:right"}) == {}


def test_weights_that_a_mixture_gives_all_parts_count_in_each() -> None:
    parts = {"sums": {"id": "r3env/Function-v0"}, "games": {"options": {"weights": [2.0, 3.0]}}}
    found = weights_of({**OPTIONS, "environments": parts})
    assert (found["sums/right"], found["sums/brief"]) == (1.0, 0.5)
    assert (found["games/right"], found["games/brief"]) == (2.0, 3.0)


@pytest.mark.parametrize("setting", ["reward.length_bonus=0.5", "reward.overlong_penalty=0.5"])
def test_what_would_not_act_is_refused(setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(ConfigError, match=f"{name}: {value} has no effect with gdpo"):
        load(None, ["training.mechanisms=[gdpo]", setting], GRPOConfig)
