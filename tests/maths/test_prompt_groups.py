import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.learner.batch import Part
from algorithms.learner.packing import assign_rows, packed_microbatches
from algorithms.learner.prompt_groups import KEYS_PER_TOKEN, assign_groups, prompt_groups, shared_microbatches

from .strategies import repeatable

PROMPT_LENGTHS = {b"a": 5, b"b": 30, b"c": 12, b"d": 1}


def part(prompt, length):
    return Part(prompt, PROMPT_LENGTHS[prompt], length)


parts = st.builds(part, st.sampled_from(sorted(PROMPT_LENGTHS)), st.integers(0, 40))
rows = st.lists(st.lists(parts, min_size=1, max_size=2), max_size=25)


def tokens_of(rows):
    prompts = {one.prompt: one.prompt_length for row in rows for one in row}
    return sum(prompts.values()) + sum(one.length for row in rows for one in row)


@repeatable
@given(rows, st.integers(1, 300))
def test_every_row_is_in_one_microbatch_within_a_budget_that_counts_prompts_once(rows, budget):
    batches = shared_microbatches(rows, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(rows)))
    for batch in batches:
        held = [rows[row] for row in batch]
        assert len(batch) == 1 or tokens_of(held) <= budget
        keys = tokens_of(held) + sum(one.prompt_length for row in held for one in row)
        assert len(batch) == 1 or keys <= KEYS_PER_TOKEN * budget


@repeatable
@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 300))
def test_rows_without_an_equal_prompt_are_placed_by_length_alone(lengths, budget):
    alone = [[Part(index.to_bytes(4), 1, length - 1)] for index, length in enumerate(lengths)]
    assert shared_microbatches(alone, budget) == packed_microbatches(lengths, budget)


def test_a_group_stays_whole_where_it_fits_and_else_repeats_its_prompt():
    group = [[part(b"b", 10)] for _ in range(4)]  # 30 + 4 × 10
    other = [[part(b"c", 8)] for _ in range(2)]  # 12 + 2 × 8
    mixed = [group[0], other[0], group[1], group[2], other[1], group[3]]
    assert shared_microbatches(mixed, 98) == [[0, 2, 3, 5, 1, 4]]
    assert shared_microbatches(mixed, 97) == [[0, 2, 3, 5], [1, 4]]
    assert shared_microbatches(group, 69) == [[0, 1, 2], [3]]
    assert shared_microbatches(group, 50) == [[0, 1], [2, 3]]
    assert shared_microbatches(group, 39) == [[0], [1], [2], [3]]  # above the budget: each by itself


def test_a_row_of_several_sequences_counts_each_prompt_that_is_new():
    first, second = [part(b"a", 3), part(b"b", 4)], [part(b"a", 2), part(b"c", 1)]
    assert tokens_of([first, second]) == 5 + 30 + 12 + 10
    assert shared_microbatches([first, second], 57) == [[0, 1]]
    assert shared_microbatches([first, second], 56) == [[0], [1]]
    assert prompt_groups([first, second, [part(b"b", 1)]]) == [[0, 1], [2]]


def test_many_short_responses_to_a_long_prompt_are_split_by_the_copies_of_its_keys():
    rows = [[part(b"b", 0)] for _ in range(20)]
    assert tokens_of(rows) == 30
    assert [len(batch) for batch in shared_microbatches(rows, 60)] == [7, 7, 6]  # 30 + 7 × 30 = 4 × 60


def test_a_budget_below_one_is_refused():
    with pytest.raises(ValueError, match="token_budget"):
        shared_microbatches([], 0)


def deal(groups, prompt, own, n):
    return assign_groups(groups, lambda part: prompt + own * len(part), n)


def load(shares, groups, prompt, own):
    """The largest cost of a learner that computes each prompt once."""
    return max(sum(prompt * any(row in share for row in g) for g in groups) + own * len(share) for share in shares)


@repeatable
@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 5), st.integers(0, 50))
def test_learners_get_every_row_once(sizes, n, prompt):
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    groups = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    shares = deal(groups, prompt, 7, n)
    assert len(shares) == n and all(share == sorted(share) for share in shares)
    assert sorted(row for share in shares for row in share) == list(range(sum(sizes)))
    whole = assign_rows([prompt + 7 * size for size in sizes], n)
    members = [[row for index in share for row in groups[index]] for share in whole]
    assert load(shares, groups, prompt, 7) <= load(members, groups, prompt, 7)


def test_groups_go_to_learners_as_a_whole():
    groups = [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert deal(groups, 100, 10, 2) == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]


def test_a_group_is_split_where_learners_would_be_idle_otherwise():
    assert deal([list(range(8))], 10, 10, 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    # Worth less than its prompt: better idle.
    assert deal([[0, 1]], 100, 1, 2) == [[0, 1], []]
    three = [list(range(8)), list(range(8, 16)), list(range(16, 24))]
    assert load(deal(three, 8, 8, 2), three, 8, 8) < 1.15 * 3 * 72 / 2


def test_single_rows_are_dealt_as_rows():
    costs = [5.0, 1.0, 9.0, 3.0, 3.0]
    assert assign_groups([[row] for row in range(5)], lambda part: costs[part[0]], 2) == assign_rows(costs, 2)
    assert assign_groups([], lambda part: 1.0, 2) == [[], []]
