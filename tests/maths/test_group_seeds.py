"""The seeds of a group's responses: a function of its place, whatever the sizes of the others."""

from hypothesis import given
from hypothesis import strategies as st

from algorithms.utils.rng import group_seeds, request_seeds

from .strategies import repeatable, seeds

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def by_group(sizes, seed=0, group_size=4, **more):
    drawn = group_seeds(seed, 3, 1, sizes, group_size, **more)
    assert len(drawn) == sum(sizes)
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [drawn[start : start + size] for start, size in zip(starts, sizes, strict=True)]


@repeatable
@given(seeds, st.integers(1, 6), st.integers(1, 9), st.integers(0, 2))
def test_groups_of_the_usual_size_have_the_streams_numbers_in_a_row(seed, groups, group_size, occasion):
    expected = request_seeds(seed, 3, 1, groups * group_size, occasion)
    assert group_seeds(seed, 3, 1, [group_size] * groups, group_size, occasion) == expected


@repeatable
@given(seeds, SIZES, SIZES)
def test_no_groups_seeds_depend_on_the_others_sizes(seed, sizes, others):
    for place, (one, other) in enumerate(zip(sizes, others, strict=False)):
        mixed = [*sizes[:place], other, *sizes[place + 1 :]]
        for at, (mine, theirs) in enumerate(zip(by_group(sizes, seed), by_group(mixed, seed), strict=True)):
            common = min(one, other) if at == place else len(mine)
            assert mine[:common] == theirs[:common]


@repeatable
@given(seeds, SIZES)
def test_every_response_has_a_seed_of_its_own(seed, sizes):
    drawn = [seed for group in by_group(sizes, seed) for seed in group]
    assert len(set(drawn)) == len(drawn)
    assert set(drawn).isdisjoint(group_seeds(seed, 3, 1, sizes, 4, occasion=1))
