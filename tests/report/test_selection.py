from algorithms.reporting.trajectories import Limit, choose_groups, evenly_spaced, select
from algorithms.train.rollout_files import write_rollouts

from .runs import row


def files(folder, steps, groups=4, size=3, tokens=10):
    made = []
    for step in range(1, steps + 1):
        rows = [row(step, group, tokens=tokens, token_data=None) for group in range(groups) for _ in range(size)]
        made.append(folder / f"step-{step:06d}.parquet")
        write_rollouts(made[-1], rows)
    return made


def test_places_are_spread_with_the_first_and_the_last_among_them():
    assert evenly_spaced(5, 9) == [0, 1, 2, 3, 4]
    assert evenly_spaced(101, 3) == [0, 50, 100]
    assert evenly_spaced(7, 1) == [6]


def test_everything_is_taken_where_it_fits(tmp_path):
    selection = select(files(tmp_path, 3), Limit(36, 360))
    assert len(selection.rows) == selection.found == 36 and selection.steps_found == 3


def test_first_and_newest_step_are_among_those_that_fit_and_groups_stay_whole(tmp_path):
    selection = select(files(tmp_path, 9), Limit(15, 10**6))
    counts = {}
    for one in selection.rows:
        counts[one.step, one.group] = counts.get((one.step, one.group), 0) + 1
    assert set(counts.values()) == {3} and len(selection.rows) == 15
    assert [step for step, _ in counts] == [1, 3, 5, 7, 9]
    assert len({group for _, group in counts}) > 1, "not the same group of every step"


def test_tokens_bound_a_page_of_long_responses(tmp_path):
    assert len(select(files(tmp_path, 4, tokens=1000), Limit(10**6, 7000)).rows) == 6


def test_what_a_short_step_leaves_goes_to_later_ones(tmp_path):
    short, long = files(tmp_path / "a", 1, groups=1), files(tmp_path / "b", 1, groups=9)
    assert len(select([*short, *long], Limit(24, 10**6)).rows) == 3 + 21


def test_a_group_that_alone_is_too_large_is_shown_all_the_same():
    assert choose_groups({0: [9] * 8, 1: [9] * 8}, Limit(4, 4), turn=1) == [1]


def test_none_asked_for_or_none_there(tmp_path):
    assert not select(files(tmp_path, 2), Limit(0, 10)).rows
    assert select([], Limit(10, 10)).found == 0
