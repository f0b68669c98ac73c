import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.learner.packing import microbatches, padding_share, shard

from .strategies import repeatable

lengths = st.lists(st.integers(0, 100), max_size=40)


@repeatable
@given(lengths, st.integers(1, 300))
def test_every_row_is_in_one_microbatch_within_the_budget(lengths, budget):
    batches = microbatches(lengths, budget)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget


@repeatable
@given(lengths, st.integers(1, 300))
def test_microbatches_are_sorted_by_length_and_full(lengths, budget):
    batches = microbatches(lengths, budget)
    order = [lengths[row] for rows in batches for row in rows]
    assert order == sorted(order, reverse=True)
    for rows in batches[:-1]:
        assert (len(rows) + 1) * lengths[rows[0]] > budget


def test_a_row_above_the_budget_is_alone():
    assert microbatches([3, 50, 3], 10) == [[1], [0, 2]]


def test_no_rows_make_no_microbatches():
    assert microbatches([], 10) == []
    assert padding_share([], []) == 0.0
    assert shard([], 2) == [[], []]


@repeatable
@given(lengths, st.integers(1, 6))
def test_shards_hold_every_row_once_and_are_balanced(costs, n):
    shards = shard(costs, n)
    assert len(shards) == n
    assert sorted(row for rows in shards for row in rows) == list(range(len(costs)))
    assert all(rows == sorted(rows) for rows in shards)
    loads = [sum(costs[row] for row in rows) for rows in shards]
    assert max(loads) - min(loads) <= max(costs, default=0)


@repeatable
@given(st.integers(0, 20), st.integers(1, 5))
def test_rows_without_cost_are_spread_as_well(rows, n):
    sizes = [len(shard) for shard in shard([0] * rows, n)]
    assert max(sizes) - min(sizes) <= 1


def test_shards_are_deterministic_for_ties():
    assert shard([5, 5, 5, 5], 2) == [[0, 2], [1, 3]]


def test_padding_share_counts_the_slots_that_hold_no_token():
    assert padding_share([4, 2, 3], [[0, 1], [2]]) == pytest.approx(2 / 11)
    assert padding_share([0, 0], [[0, 1]]) == 0.0


@repeatable
@given(lengths.filter(lambda lengths: sum(lengths) > 0))
def test_rows_of_their_own_need_no_padding(lengths):
    assert padding_share(lengths, microbatches(lengths, 1)) == 0.0


def test_numpy_integers_do_not_overflow():
    lengths = np.full(4, 2**30, dtype=np.int32)
    assert padding_share(lengths, [[0, 1, 2, 3]]) == 0.0
    assert microbatches(lengths, 2**31) == [[0, 1], [2, 3]]
    assert microbatches(np.array([1, 2], dtype=np.uint8), 2) == [[1], [0]]


def test_refuses_bad_input():
    with pytest.raises(ValueError, match="token_budget"):
        microbatches([1], 0)
    with pytest.raises(ValueError, match="lengths"):
        microbatches([-1], 5)
    with pytest.raises(ValueError, match="n must"):
        shard([1], 0)
    with pytest.raises(ValueError, match="costs"):
        shard([-1], 1)
