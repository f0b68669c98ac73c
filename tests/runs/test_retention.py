from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.train.checkpoints import checkpoints_to_delete

BEST = "eval/pass@1"


def measured(values):
    return {step: ({} if value is None else {BEST: value}) for step, value in values.items()}


def test_the_newest_stay_and_the_best_one():
    values = measured({10: 0.3, 20: 0.9, 30: 0.4, 40: 0.5, 50: 0.2})
    assert checkpoints_to_delete(values, keep=2, best_by=BEST) == [10, 30]
    assert checkpoints_to_delete(values, keep=2, best_by=None) == [10, 20, 30]
    assert checkpoints_to_delete(values, keep=9, best_by=None) == []


def test_zero_keeps_all():
    assert checkpoints_to_delete(measured({10: 0.1, 20: None, 30: 0.0}), keep=0, best_by=BEST) == []


def test_what_was_not_measured_is_never_the_best_and_the_earliest_of_equals_is():
    values = measured({10: None, 20: 0.5, 30: 0.5, 40: None, 50: None})
    assert checkpoints_to_delete(values, keep=1, best_by=BEST) == [10, 30, 40]


@settings(derandomize=True, deadline=None)
@given(st.dictionaries(st.integers(1, 99), st.none() | st.floats(0, 1), min_size=1), st.integers(1, 5), st.booleans())
def test_never_more_than_one_beyond_the_newest_and_never_the_newest(values, keep, best):
    gone = checkpoints_to_delete(measured(values), keep=keep, best_by=BEST if best else None)
    left = sorted(set(values) - set(gone))
    assert left[-keep:] == sorted(values)[-keep:]
    assert len(left) <= keep + int(best)
