import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.learner.packing import assign_rows, packed_microbatches, padded_microbatches

from .strategies import repeatable

lengths = st.lists(st.integers(0, 100), max_size=40)


BOTH = pytest.mark.parametrize("cut", [packed_microbatches, padded_microbatches])


@repeatable
@given(lengths, st.integers(1, 300))
def test_every_row_is_in_one_packed_microbatch_within_the_budget(lengths, budget):
    batches = packed_microbatches(lengths, budget)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or sum(lengths[row] for row in rows) <= budget


@repeatable
@given(lengths, st.integers(1, 300))
def test_no_row_of_a_packed_microbatch_fits_in_an_earlier_one(lengths, budget):
    batches = packed_microbatches(lengths, budget)
    for later, rows in enumerate(batches):
        for earlier in batches[:later]:
            # When the row was placed, the earlier micro-batch held the rows before it only.
            before = [row for row in earlier if (-lengths[row], row) < (-lengths[rows[0]], rows[0])]
            assert sum(lengths[row] for row in before) + lengths[rows[0]] > budget


def test_packed_microbatches_fill_up_where_padded_ones_stay_half_empty():
    assert packed_microbatches([90, 10, 60, 40], 100) == [[0, 1], [2, 3]]
    assert padded_microbatches([90, 10, 60, 40], 100) == [[0], [2], [3, 1]]


@repeatable
@given(lengths, st.integers(1, 300))
def test_every_row_is_in_one_padded_microbatch_within_the_budget(lengths, budget):
    batches = padded_microbatches(lengths, budget)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget


@repeatable
@given(lengths, st.integers(1, 300))
def test_padded_microbatches_are_sorted_by_length_and_full(lengths, budget):
    batches = padded_microbatches(lengths, budget)
    order = [lengths[row] for rows in batches for row in rows]
    assert order == sorted(order, reverse=True)
    for rows in batches[:-1]:
        assert (len(rows) + 1) * lengths[rows[0]] > budget


def test_the_sequences_of_a_row_are_each_as_long_as_the_longest_of_their_microbatch():
    assert padded_microbatches([20, 2], 60, [1, 10]) == [[0], [1]], "together they would take 11 x 20 slots"
    assert padded_microbatches([20, 2, 2], 60, [1, 2, 1]) == [[0, 1], [2]]


@BOTH
def test_a_row_above_the_budget_is_alone(cut):
    assert cut([3, 50, 3], 10) == [[1], [0, 2]]


@BOTH
def test_no_rows_make_no_microbatches(cut):
    assert cut([], 10) == []
    assert assign_rows([], 2) == [[], []]


@repeatable
@given(lengths, st.integers(1, 6))
def test_shards_hold_every_row_once_and_are_balanced(costs, n):
    shards = assign_rows(costs, n)
    assert len(shards) == n
    assert sorted(row for rows in shards for row in rows) == list(range(len(costs)))
    assert all(rows == sorted(rows) for rows in shards)
    loads = [sum(costs[row] for row in rows) for rows in shards]
    assert max(loads) - min(loads) <= max(costs, default=0)


@repeatable
@given(st.integers(0, 20), st.integers(1, 5))
def test_rows_without_cost_are_spread_as_well(rows, n):
    sizes = [len(shard) for shard in assign_rows([0] * rows, n)]
    assert max(sizes) - min(sizes) <= 1


def test_shards_are_deterministic_for_ties():
    assert assign_rows([5, 5, 5, 5], 2) == [[0, 2], [1, 3]]


def test_numpy_integers_do_not_overflow():
    lengths = np.full(4, 2**30, dtype=np.int32)
    assert padded_microbatches(lengths, 2**31) == packed_microbatches(lengths, 2**31) == [[0, 1], [2, 3]]
    assert padded_microbatches(np.array([1, 2], dtype=np.uint8), 2) == [[1], [0]]


def test_refuses_bad_input():
    with pytest.raises(ValueError, match="token_budget"):
        packed_microbatches([1], 0)
    with pytest.raises(ValueError, match="lengths"):
        padded_microbatches([-1], 5)
    with pytest.raises(ValueError, match="n must"):
        assign_rows([1], 0)
    with pytest.raises(ValueError, match="costs"):
        assign_rows([-1], 1)
