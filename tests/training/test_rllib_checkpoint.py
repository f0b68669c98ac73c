"""RLlib's own checkpoint, pickled and only on request: it holds the training loop too."""

import pytest

from .runs_of import largest_difference, train, weights


@pytest.mark.slow
def test_rllibs_own_checkpoint_resumes_as_exactly_as_ours(r3_config, build, tmp_path, small_pool):
    whole = build(r3_config.environment(data=small_pool))
    train(whole, 2)
    path = whole.save_to_path(tmp_path / "rllib")
    stored = len(whole.history)
    expected = train(whole, 2)
    resumed = build(r3_config.copy())
    resumed.restore_from_path(path)
    assert stored and len(resumed.history) == stored
    assert train(resumed, 2) == expected
    assert largest_difference(weights(whole), weights(resumed)) == 0.0
