"""Sizes of groups: Knapsack RL's optimum against a search of all, and GDRO's adversary by hand."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.config.errors import ConfigError
from algorithms.config.sections import TrainingSettings
from algorithms.grpo.types import Prompt
from algorithms.methods import gdro
from algorithms.rollout.types import Context
from tests.maths.strategies import repeatable

from .simulated import Run, group, made, services

RATES = st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.875, 1.0]), min_size=1, max_size=4)


def of_size(group_size):
    return services(config=SimpleNamespace(training_settings=TrainingSettings(group_size=group_size)))


def value(rate, size):
    return (1 - rate**size - (1 - rate) ** size) * rate * (1 - rate) ** 2


@repeatable
@given(RATES)
def test_knapsack_is_the_best_of_all_allocations(rates):
    one = made("knapsack", of_size(4), fallback=False, max_size=9)
    sizes = one.sizes(np.array(rates))
    assert sum(sizes) == 4 * len(rates) and min(sizes) >= 2
    if not any(0 < rate < 1 for rate in rates):
        return
    best = max(
        sum(map(value, rates, each))
        for each in itertools.product(range(2, 10), repeat=len(rates))
        if sum(each) <= 4 * len(rates)
    )
    assert sum(map(value, rates, sizes)) == pytest.approx(best, abs=1e-12)


def test_knapsack_by_hand():
    one = made("knapsack", of_size(8), fallback=False)
    assert one.sizes(np.array([0.0, 0.25, 1.0, np.nan])) == [2, 20, 2, 8]
    many = one.sizes(np.array([0.125, 0.5, 0.5]))
    assert many[0] > many[1] >= many[2], "the harder one needs more to come out mixed"


def test_knapsack_gives_what_mixed_queries_do_not_need_to_unsolved_ones():
    one = made("knapsack", of_size(8), fallback=True)
    needed = int(math.log(0.1) / math.log(0.5))
    assert one.sizes(np.array([0.5, 0.0, 1.0])) == [2 + needed, 24 - 4 - needed, 2]
    assert one.sizes(np.array([0.5, 1.0])) == [2 + needed, 16 - 2 - needed]
    assert one.sizes(np.array([0.0, 1.0, 0.0])) == [11, 2, 11]
    assert one.sizes(np.array([1.0, 1.0])) == [8, 8]


@repeatable
@given(RATES, st.integers(2, 9), st.booleans())
def test_knapsack_keeps_the_sum_and_the_bounds(rates, group_size, fallback):
    one = made("knapsack", of_size(group_size), fallback=fallback, max_size=2 * group_size)
    sizes = one.sizes(np.array([*rates, np.nan]))
    assert sum(sizes) == group_size * (len(rates) + 1)
    assert min(sizes) >= 2 and sizes[-1] >= group_size


def test_knapsack_reads_the_last_pass_rate_of_each_query():
    one = made("knapsack", of_size(4), fallback=False)
    prompts = [Prompt("q01"), Prompt("q02"), Prompt("q03")]
    assert [prompt.size for prompt in one.shape_prompts(prompts, 0)] == [4, 4, 4]
    Run.update(one, group("q01", 1, 1), group("q02", 1, 0, replayed=(1, 1)))
    Run.update(one, group("q01", 1, 0, context=Context.REFLECTION), group("q02", 0, 0, 0, 1))
    assert one.rates.of(["q01", "q02"]).tolist() == [1.0, 0.25]
    assert [prompt.size for prompt in one.shape_prompts(prompts, 0)] == [2, 6, 4]


@pytest.mark.parametrize("name", ["knapsack", "gdro"])
def test_a_usual_size_outside_the_bounds_is_refused(name):
    one = made(name, min_size=5)
    with pytest.raises(ConfigError, match=f"{name}.min_size: training.group_size=4 is not between 5 and"):
        one.check(one.settings, services().config)


# -- GDRO -------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def newest_group(monkeypatch):
    monkeypatch.setattr(gdro, "MEMORY", 0.0)


def trained(*groups, steps=1, **settings):
    one = made("gdro", of_size(4), **settings)
    for _ in range(steps):
        Run.update(one, *groups)
    return one


def test_gdro_scores_bins_by_what_failed_in_them():
    one = trained(group("q01", 0, 0), group("q02", 0, 1, 0, 0), group("q03", 1, 1), steps=2)
    hard = (1 - 0.88**2) * (1 + 0.75) / 2
    assert one.scores == pytest.approx([hard, 0, 0])
    omega = np.exp(0.65 * np.array([hard, 0, 0]))
    assert one.factors(["q01", "q02", "q03", "q04"]) == pytest.approx([omega[0], omega[0], omega[2], omega.mean()])


def test_gdro_gives_hard_bins_more_responses_in_proportion_and_keeps_the_sum():
    one = made("gdro", of_size(4))
    assert one.sizes(np.array([1.0, 1.0, 1.0])) == [4, 4, 4]
    assert one.sizes(np.array([4.0, 1.0, 1.0])) == [8, 2, 2]
    assert one.sizes(np.array([1.0, 1.0, 40.0])) == [2, 2, 8]
    # 12 in shares of 5.4, 4.2 and 2.4: the largest remainder, 0.4, gets the one that is left.
    assert sum(one.sizes(np.array([4.5, 3.5, 2.0]))) == 12


@repeatable
@given(st.lists(st.floats(0.5, 20), min_size=1, max_size=8), st.integers(2, 9))
def test_gdro_keeps_sum_and_bounds(factors, group_size):
    sizes = made("gdro", of_size(group_size), max_size=3 * group_size).sizes(np.array(factors))
    assert sum(sizes) == group_size * len(factors)
    assert min(sizes) >= 2 and max(sizes) <= 3 * group_size
    order = np.argsort(factors, kind="stable")
    assert (np.diff(np.array(sizes)[order]) >= -1).all()


def test_gdro_moves_a_query_between_bins_only_past_the_edge():
    one = made("gdro")
    assert [one.bin(rate, -1) for rate in (0.1, 0.4, 0.5, 0.9)] == [0, 1, 1, 2]
    assert [one.bin(0.42, old) for old in (0, 1)] == [0, 1]
    assert one.bin(0.44, 0) == 1 and one.bin(0.38, 1) == 1 and one.bin(0.36, 1) == 0 and one.bin(1.0, 0) == 2


def test_gdro_weighs_advantages_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(gdro, "BETA", 1.0)
    monkeypatch.setattr(gdro, "ETA", 5.0)
    advantages = np.array([1.0, -1.0])
    one = trained(group("q01", 0, 0), weights=True)
    assert one.advantages(group("q01", 0, 1), advantages).tolist() == [15.0, -15.0]
    tokens = one.advantages(group("q01", 0, 1), [advantages, advantages])
    assert [each.tolist() for each in tokens] == [[15.0, -15.0]] * 2
    plain = trained(group("q01", 0, 0))
    assert plain.advantages(group("q01", 0, 1), advantages) is advantages


@pytest.mark.parametrize("name", ["knapsack", "gdro"])
def test_hard_queries_get_more_responses_than_easy_ones_at_the_same_cost(name, monkeypatch):
    monkeypatch.setattr(gdro, "BETA", 0.5)
    monkeypatch.setattr(gdro, "MEMORY", 0.85)
    run = Run(mechanisms=[name])
    run.train(20)
    sizes = {"hard": [], "easy": []}
    for _ in range(20):
        rolled_out, _, metrics = run.train(1)[0]
        assert sum(len(responses) for _, _, responses in rolled_out) == 4 * 5
        for uid, _, responses in rolled_out:
            rate = run.workers.rates[uid]
            if rate in (0.25, 1.0):
                sizes["hard" if rate == 0.25 else "easy"].append(len(responses))
        assert metrics[f"{name}/largest"] == max(len(responses) for _, _, responses in rolled_out)
    assert np.mean(sizes["hard"]) > 1.2 * np.mean(sizes["easy"])
