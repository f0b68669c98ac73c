"""The algorithm and its configuration in `ray.tune.Tuner`."""

import pytest
from ray import tune

from examples.tune_learning_rate import COLUMNS, PASS_AT_1, STEP, search

SMALL = ["evaluation.interval=1", "evaluation.limit=16", "training.queries_per_step=4", "training.minibatches=1"]


@pytest.mark.slow
def test_a_scheduler_stops_the_worse_learning_rate_and_the_results_hold_our_metrics(tmp_path, ray_session):
    sane, far_too_high = 1e-4, 10.0
    results = search(
        tune.grid_search([sane, far_too_high]), settings=SMALL, trials=1, steps=3, at_a_time=1, folder=tmp_path
    )
    assert not results.errors
    frame = results.get_dataframe().set_index("config/lr")
    assert dict(frame[STEP]) == {sane: 3, far_too_high: 1}
    assert results.get_best_result().config["lr"] == sane
    assert frame.loc[sane, PASS_AT_1] > frame.loc[far_too_high, PASS_AT_1]
    assert {*COLUMNS, "policy/grad_norm", "groups/solve_none", "response/mean_tokens"} - {"config/lr"} <= {*frame}
