"""MedGRPO: rewards of two parts on one scale, by hand, and what a resumed run knows of them."""

import numpy as np
import pytest

from algorithms.grpo.types import StepBatch
from algorithms.methods.med_grpo import MedGRPO, MedGRPOSettings
from tests.methods.simulated import group, services


def step(one, *groups):
    """The rewards that it pays in a step."""
    batch = StepBatch(0, groups=list(groups))
    one.before_rewards(batch)
    for each in groups:
        one.rewards(each)
    one.update_history(batch)
    return [[sample.shaped_reward for sample in each.samples] for each in groups]


def test_the_median_of_each_part_pays_a_half_and_half_a_quartile_distance_above_it_three_quarters():
    """Medians 2 and 20, quartiles 1 and 3, 10 and 30: distances of 2 and 20."""
    one = MedGRPO(MedGRPOSettings(), services())
    easy, hard = step(one, group("easy/1", 0, 1, 2, 3, 4), group("hard/1", 0, 10, 20, 30, 40))
    assert easy == pytest.approx([0.1, 0.25, 0.5, 0.75, 0.9]) and hard == pytest.approx(easy)
    assert one.metrics == {"med_grpo/parts": 2, "med_grpo/lowest_median": 2, "med_grpo/highest_median": 20}


def test_equal_rewards_have_a_spread_all_the_same_and_without_a_mixture_there_is_one_part():
    one = MedGRPO(MedGRPOSettings(min_spread=0.5), services())
    first, second = step(one, group("1", 0, 0, 0), group("2", 0, 1))
    assert first == [0.5] * 3 and second == pytest.approx([0.5, 1 / (1 + 9**-2)])


def test_a_scale_stays_once_it_is_measured_and_a_resumed_run_has_it():
    one = MedGRPO(MedGRPOSettings(responses=4), services())
    step(one, group("a/1", 0, 1, 2, 3, 100), group("b/1", 5))
    resumed = MedGRPO(MedGRPOSettings(responses=4), services())
    resumed.restore(*one.state())
    assert [values.tolist() for values in resumed.kept.values()] == [[0, 1, 2, 3], [5]]
    later = [group("a/2", 1.5, 50), group("b/2", 7)]
    (paid, other), again = step(one, *later), step(resumed, *later)
    assert [paid, other] == again and paid == pytest.approx([0.5, 1.0])
    assert other == pytest.approx([1 / (1 + 9**-1)]), "its median is 6 by now, its quartiles 5.5 and 6.5"
    fresh = MedGRPO(MedGRPOSettings(), services())
    fresh.restore({}, {})
    assert fresh.kept == {} and fresh.state() == ({}, {"parts": []}) and np.isfinite(paid).all()


def test_a_replayed_response_is_paid_by_the_scale_of_those_that_it_joins():
    """Median .3, a spread of .1: two failures that earned .4 are paid .9, a success of .6 that joins them more."""
    one = MedGRPO(MedGRPOSettings(responses=4), services())
    step(one, group("a/1", 0.2, 0.3, 0.3, 0.4))
    later = group("a/2", 0.4, 0.4)
    step(one, later)
    later.samples += group("a/2", replayed=[0.6]).samples
    hinted = group("a/2", 0.6).samples[0]  # of a group that dynamic sampling left out
    hinted.borrowed = True
    later.samples.append(hinted)
    one.normalize(later)
    assert [s.shaped_reward for s in later.samples] == pytest.approx([0.9, 0.9, *[1 / (1 + 9**-3)] * 2])
