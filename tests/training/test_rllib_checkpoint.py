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


@pytest.mark.slow
def test_rollouts_made_ahead_are_dropped_when_an_algorithm_is_restored(grpo_config, build, tmp_path):
    """Population-based training restores an algorithm that has trained on: rollouts made ahead are of other weights."""
    algorithm = build(grpo_config.training(max_off_policy_steps=1).env_runners(num_env_runners=1))
    path = algorithm.save_to_path(tmp_path / "rllib")
    train(algorithm, 1)
    first = [group.prompt.uid for group in algorithm.batch.groups]
    train(algorithm, 1)
    algorithm.restore_from_path(path)
    (record,) = train(algorithm, 1)
    assert record["rollout/policy_lag"] == 0.0
    assert [group.prompt.uid for group in algorithm.batch.groups] == first


def test_what_a_failed_step_has_begun_to_change_is_not_saved(grpo_config, build, tmp_path, monkeypatch):
    algorithm = build(grpo_config)

    def fail(batch):
        raise ZeroDivisionError

    fail.__name__ = "update_policy"
    monkeypatch.setattr(algorithm, "update_policy", fail)
    with pytest.raises(ZeroDivisionError):
        algorithm.train()
    with pytest.raises(RuntimeError, match="the step after 0 failed in update_policy"):
        algorithm.save_to_path(tmp_path / "rllib")
