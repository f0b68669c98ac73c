"""What each sampler chooses, against computations by hand, and what it learns from."""

from collections import Counter

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.state import restore_states
from algorithms.methods.vas import distinct
from algorithms.rollout.types import Context

from .simulated import RATES, UIDS, Run, group, made, services

# -- GRESO ------------------------------------------------------------------------------------------------------------


def taught(*groups, **settings):
    """A GRESO that has seen these groups, one after another."""
    one = made("greso", **settings)
    for each in groups:
        Run.update(one, each)
    return one


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], 1.0),
        ([(1, 1)], 0.5),
        ([(1, 1), (1, 1)], 0.25),
        ([(0, 0)] * 3, 0.125),
        ([(0, 0)] * 9, 0.01),
        ([(1, 1), (0, 1)], 1.0),
        ([(1, 1), (1, 1), (0, 0)], 0.5),
    ],
)
def test_greso_samples_a_query_with_a_probability_that_falls_with_each_homogeneous_group(outcomes, expected):
    one = taught(*(group("q01", *each) for each in outcomes))
    assert one.keeps()[1] == pytest.approx(expected) and one.keeps()[0] == 1


def test_greso_skips_as_often_as_it_says_and_keeps_the_epochs_order():
    one = taught(group("q01", 1, 1), group("q02", 0, 0), group("q02", 0, 0))
    plain = made("epoch")
    drawn = one.take(4000, 0)
    passed = plain.take(one.drawn, 0)
    rest = iter(passed)
    assert all(uid in rest for uid in drawn), "the epoch's order, with gaps"
    seen, stream = Counter(drawn), Counter(passed)
    assert seen["q00"] == stream["q00"]
    assert seen["q01"] / stream["q01"] == pytest.approx(0.5, abs=0.1)
    assert seen["q02"] / stream["q02"] == pytest.approx(0.25, abs=0.1)


def test_greso_steers_both_probabilities_to_their_targets_once_the_first_epoch_is_over():
    one = made("greso", target=0.6)
    step = [group("q01", 1, 1), group("q02", 0, 1), group("q03", 0, 1), group("q04", 0, 0)]
    Run.update(one, *step)
    assert one.p.tolist() == [0.5, 0.5]
    one.drawn = len(UIDS) + 1
    Run.update(one, *step)  # a quarter each; the targets are 0.2 and 0.4
    assert one.p == pytest.approx([0.49, 0.51])
    for _ in range(50):
        Run.update(one, *step)
    assert one.p == pytest.approx([0.05, 0.95])


def test_greso_sees_dropped_groups_and_no_replayed_or_reflected_response():
    one = made("greso")
    Run.update(
        one,
        group("q01", 0, 0, replayed=(1,)),
        group("q02", 1, 1, context=Context.REFLECTION),
        dropped=[group("q03", 1, 1)],
    )
    assert one.runs[:4].tolist() == [0, -1, 0, 1]


def test_greso_wastes_fewer_groups_than_the_epoch_on_queries_that_teach_nothing():
    def dull(sampler):
        run = Run(sampler)
        run.train(30)
        return sum(RATES[uid] in (0.0, 1.0) for _ in range(10) for uid in run.train(1)[0][1])

    assert dull("greso") < 0.6 * dull("epoch")


# -- The window -------------------------------------------------------------------------------------------------------


def test_the_window_leaves_out_what_the_data_say_is_outside():
    given = services(info=lambda uid: {"rate": str(RATES[uid])})
    one = made("window", given, column="rate", low=0.25, high=0.5)
    assert set(one.take(100, 0)) == {uid for uid, rate in RATES.items() if 0.25 <= rate <= 0.5}
    assert one.drawn > 100


def test_the_window_measures_a_query_once_and_samples_unknown_ones():
    one = made("window", low=0.2, high=0.8)
    Run.update(one, group("q01", 1, 1), group("q02", 0, 1), group("q03", 0, 0))
    Run.update(one, group("q02", 1, 1), group("q03", 0, 1))
    assert set(UIDS) - set(one.take(100, 0)) == {"q01", "q03"}
    assert one.metrics["window/share"] == pytest.approx(22 / 24)


def test_where_no_query_is_in_the_window_the_nearest_are_sampled():
    given = services(uids=["a", "b", "c"], info=lambda uid: {"rate": {"a": 0.0, "b": 1.0, "c": 0.9}[uid]})
    assert made("window", given, column="rate", low=0.5, high=0.6).take(3, 0) == ["c", "c", "c"]


def test_the_windows_column_has_to_hold_rates():
    with pytest.raises(ConfigError, match=r"window.column: rate of query q00 is None, and not a number from 0 to 1"):
        made("window", column="rate")
    with pytest.raises(ConfigError, match=r"window.low: 0.8 is above window.high, 0.2; fix"):
        one = made("window", low=0.8, high=0.2)
        one.check(one.settings, None)


# -- VAS --------------------------------------------------------------------------------------------------------------


def test_distinct_n_grams_by_hand():
    # 1-grams 2 of 6, 2-grams {11, 12} 2 of 4, 3-grams {111, 112} 2 of 2.
    assert distinct([np.array([1, 1, 1]), np.array([1, 1, 2])]) == pytest.approx((2 / 6 + 2 / 4 + 2 / 2) / 3)
    assert distinct([]) == 0


def test_vas_weighs_variance_and_diversity_and_refreshes_both_together():
    one = made("vas", interval=2)
    before = one.weights.copy()
    assert before == pytest.approx(np.full(24, 0.8 * 0.25 + 0.2))
    Run.update(one, group("q01", 1, 0, 0, 0), step=0)
    assert (one.weights == before).all()
    Run.update(one, group("q02", 1, 1), step=1)
    # Each group repeats the tokens 2 3: of n responses 2 of 2n 1-grams are distinct, and 1 of n 2-grams.
    assert one.weights[1] == pytest.approx(0.8 * 0.25 * 0.75 + 0.2 * 0.25)
    assert one.weights[2] == pytest.approx(0.2 * 0.5)
    assert one.weights[0] == before[0]


def test_vas_draws_its_share_by_weight_and_the_rest_uniformly():
    one = made("vas", share=0.5)
    one.weights[:] = 0.0
    one.weights[:4] = [1, 2, 3, 4]
    first, rest = Counter(), Counter()
    for step in range(3000):
        taken = one.take(2, step)
        first[taken[0]] += 1
        rest[taken[1]] += 1
        one.taken.clear()
        assert taken[0] != taken[1]
    assert [first[uid] / 3000 for uid in UIDS[:4]] == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.05)
    assert set(first) == set(UIDS[:4]) and set(rest) == set(UIDS)


def test_vas_repeats_no_query_in_a_step_until_all_were_there():
    one = made("vas")
    taken = [uid for occasion, count in enumerate([10, 10, 4]) for uid in one.take(count, 3, occasion)]
    assert sorted(taken) == UIDS
    assert sorted(one.take(48, 9)) == sorted(UIDS * 2)


# -- SELF -------------------------------------------------------------------------------------------------------------


def test_self_samples_only_what_the_greedy_answer_gets_wrong_and_trains_on_no_greedy_answer():
    run = Run(mechanisms=["self_filter"])  # the greedy answer is wrong up to a pass rate of 0.5
    for _ in range(6):
        rolled_out, trained, metrics = run.train(1)[0]
        greedy, sampled = run.workers.rounds[-2:] if metrics["self_filter/kept"] else (run.workers.rounds[-1], [])
        assert [request.sampling.temperature for request in greedy] == [0.0] * 5
        wrong = [request.uid for request in greedy if RATES[request.uid] <= 0.5]
        assert trained == wrong and [request.uid for request in sampled[::4]] == wrong
        assert all(request.sampling.temperature == 1 for request in sampled) and len(sampled) == 4 * len(wrong)
        assert metrics == {"self_filter/kept": len(wrong), "self_filter/greedy_correct": 1 - len(wrong) / 5}
        assert len(rolled_out) == 5 + len(wrong)


@pytest.mark.parametrize("name", ["self_filter", "adcl"])
def test_what_chooses_queries_in_the_step_refuses_further_rounds(name):
    one, config = made(name), Run(max_resample_rounds=2).services.config
    with pytest.raises(ConfigError, match=r"training.max_resample_rounds: 2 .*; fix: training.max_resample_rounds=0"):
        one.check(one.settings, config)


# -- ADCL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [0, 2])
def test_adcl_measures_what_comes_next_and_takes_it_from_easy_to_hard(lag):
    run = Run("adcl", settings={"adcl": {"interval": 2, "responses": 64}}, max_off_policy_steps=lag)
    seen = []
    for step in range(3 + lag):
        rolled_out, trained, metrics = run.train(1)[0]
        probes = [uid for uid, context, _ in rolled_out if context == "probe"]
        assert len(trained) == 5 and len(probes) == metrics["adcl/measured"] == (10 if step % 2 == 0 else 0)
        if step == 0:
            expected = sorted(probes, key=lambda uid: -run.sampler.rates.of([uid])[0])
        elif step > lag:
            seen += trained
    assert seen == expected
    rates = [RATES[uid] for uid in seen]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("lag", [0, 1])
def test_adcl_goes_on_from_the_position_of_a_run_that_it_starts_from(lag):
    """As `run.start_with=[queries]` has it: the order and the position, and steps that count from 0."""
    made = [Run("adcl", settings={"adcl": {"interval": 3}}, max_off_policy_steps=lag) for _ in range(2)]
    earlier, later = made
    earlier.train(2)
    arrays, state = earlier.save()
    restore_states([later.sampler], None, arrays, state["states"])
    later.source.restart({"query_position": state["query_position"]})
    drawn = [earlier.sampler.uids[query] for query in earlier.sampler.order]
    begin = state["query_position"]
    assert begin == 5 * (2 + lag)
    rolled_out, trained, _ = later.train(1)[0]
    assert trained == drawn[begin : begin + 5]
    assert sorted(later.sampler.order) == sorted(range(len(drawn)))
    probes = [uid for uid, context, _ in rolled_out if context == "probe"]
    assert probes == [drawn[place % len(drawn)] for place in range(begin + 5 * (1 + lag), begin + 5 * (4 + lag))]


def test_adcl_goes_through_all_queries_in_each_pass():
    run = Run("adcl", settings={"adcl": {"interval": 3}}, queries_per_step=6)
    for _ in range(3):
        trained = [uid for _, own, _ in run.train(4) for uid in own]
        assert sorted(trained) == UIDS


@pytest.mark.parametrize("name", ["knapsack", "gdro", "dph_rl"])
def test_a_mechanism_forgets_what_stands_by_the_place_of_a_query_too(name):
    earlier, later = (Run(mechanisms=[name]) for _ in range(2))
    earlier.train(3)
    arrays, state = earlier.save()
    restore_states(later.active[:1], None, arrays, state["states"], same_queries=False)
    new, kept, then = (run.active[0].state()[0] for run in (Run(mechanisms=[name]), later, earlier))
    for array in later.active[0].by_query:
        np.testing.assert_array_equal(kept[array], new[array])
    assert any((then[array] != new[array]).any() for array in later.active[0].by_query)


@pytest.mark.parametrize("name", ["posterior", "greso", "vas", "window", "adcl", "exgrpo"])
def test_what_stands_by_the_place_of_a_query_is_not_restored_for_other_queries(name):
    earlier, later, same = (Run(name) for _ in range(3))
    earlier.train(3)
    arrays, state = earlier.save()
    assert set(later.sampler.by_query) <= set(later.sampler.state()[0])
    restore_states([later.sampler], None, arrays, state["states"], same_queries=False)
    restore_states([same.sampler], None, arrays, state["states"])
    for array in later.sampler.by_query:
        new, then, kept = (run.sampler.state()[0][array] for run in (Run(name), earlier, later))
        np.testing.assert_array_equal(kept, new)
        np.testing.assert_array_equal(same.sampler.state()[0][array], then)
