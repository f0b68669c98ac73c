"""RLlib's own checkpoint, pickled and only on request: it holds the training loop too."""

from unittest.mock import Mock

import pytest

from algorithms.grpo.base import TRAINING_LOOP

from .runs_of import largest_difference, train, weights


@pytest.mark.slow
def test_rllibs_own_checkpoint_resumes_as_exactly_as_ours(r3_config, build, tmp_path, small_pool):
    whole = build(r3_config.environment(data=small_pool))
    train(whole, 2)
    path = whole.save_to_path(tmp_path / "rllib")
    stored = len(whole.history)
    expected = train(whole, 2)
    resumed = build(r3_config.copy())
    resumed.restore_from_path(f"file://{path}")
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


@pytest.mark.parametrize("way", ["state", "weights", "component"])
def test_older_weights_reach_learners_and_engines(grpo_config, build, tmp_path, way):
    """RLlib keeps the newer weights of two, and tells env runners only of a whole checkpoint."""
    algorithm = build(grpo_config)
    saved, older = algorithm.get_state(), algorithm.get_weights()
    path = algorithm.learner_group.save_to_path(tmp_path / "learner_group")
    expected = algorithm.sample("1 + 2", n=4)
    train(algorithm, 2)
    trained, version = weights(algorithm), algorithm.rollout_workers.version
    if way == "state":
        algorithm.set_state({name: part for name, part in saved.items() if name != TRAINING_LOOP})
    elif way == "weights":
        algorithm.set_weights(older)
    else:
        algorithm.restore_from_path(path, component="learner_group")
    assert largest_difference(weights(algorithm), older["default_policy"]) == 0.0
    assert largest_difference(weights(algorithm), trained) > 0.0
    assert algorithm.rollout_workers.version > version
    assert algorithm.sample("1 + 2", n=4) == expected


@pytest.mark.parametrize("stage", ["score_tokens", "sync_weights"])
def test_a_step_that_failed_is_repeated(grpo_config, build, monkeypatch, stage):
    algorithm = build(grpo_config)

    def fail(batch):
        failed.append([group.prompt.uid for group in batch.groups])
        raise ZeroDivisionError

    failed, fail.__name__ = [], stage
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(algorithm, stage, fail)
        algorithm.train()
    algorithm.train()
    assert [[group.prompt.uid for group in algorithm.batch.groups]] == failed
    assert algorithm.steps_done == algorithm.iteration == 1


def test_a_step_whose_weights_were_not_sent_is_trained_on_and_stored_once(r3_config, build, monkeypatch):
    algorithm = build(r3_config.history(capacity=None, dedupe=False))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(algorithm.rollout_workers, "push_weights", Mock(side_effect=ZeroDivisionError))
        algorithm.train()
    stored, trained = len(algorithm.history), weights(algorithm)
    algorithm.train()
    assert len(algorithm.history) == stored > 0 and largest_difference(weights(algorithm), trained) == 0.0
    assert algorithm.steps_done == algorithm.iteration == 1 and algorithm.batch.record["replay/stored"] == stored
    assert algorithm.rollout_workers.version > 0


def test_a_step_is_repeated_behind_weights_that_are_not_its_own(grpo_config, build, monkeypatch):
    algorithm = build(grpo_config)
    before = algorithm.get_weights()
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(algorithm.rollout_workers, "push_weights", Mock(side_effect=ZeroDivisionError))
        algorithm.train()
    algorithm.set_weights(before)
    algorithm.train()
    assert largest_difference(weights(algorithm), before["default_policy"]) > 0.0 and algorithm.steps_done == 1


def test_a_step_whose_evaluation_failed_counts(grpo_config, build, monkeypatch):
    """Evaluations behind it are not late."""
    algorithm = build(grpo_config.evaluation(interval=2))
    algorithm.train()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("algorithms.grpo.base.evaluate_policy", Mock(side_effect=KeyboardInterrupt))
        algorithm.train()
    assert algorithm.steps_done == algorithm.iteration == 2
    algorithm.train()
    assert algorithm.evaluated_at is None
    algorithm.train()
    assert algorithm.evaluated_at == 4
