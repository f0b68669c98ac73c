"""When log-probs of engine and learner differ by more than rounding explains."""

import pytest

from algorithms.grpo.monitors import MismatchWatch

FLOAT, MIXED = ("float32", "float32"), ("bfloat16", "float32")


@pytest.mark.parametrize(("threshold", "dtypes", "limit"), [(None, FLOAT, 1e-2), (None, MIXED, 1.0), (0.3, FLOAT, 0.3)])
def test_it_warns_above_what_the_types_explain_and_once(threshold, dtypes, limit):
    watch = MismatchWatch(threshold, dtypes)
    assert watch.observe(limit, lag=0) is None
    warning = watch.observe(1.01 * limit, lag=0)
    assert warning is not None and "tied head" in warning and "env_runners.logp_mismatch_warning" in warning
    assert watch.observe(2 * limit, lag=0) is None


def test_a_policy_that_lags_differs_on_purpose_and_nothing_measured_is_no_mismatch():
    watch = MismatchWatch(None, FLOAT)
    assert watch.observe(5.0, lag=1) is None
    assert watch.observe(float("nan"), lag=0) is None
    assert watch.observe(5.0, lag=0) is not None
